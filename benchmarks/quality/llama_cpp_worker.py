"""llama.cpp through llama-cpp-python's low-level interface: logits of every position of a text.

Reads one JSON object a line, ``{"token_ids"}``, until standard input closes, and answers each with the logits of every
arm, in order: float32 [positions, vocabulary], raw.  The first line out is a JSON object that tells what runs.
"""

import argparse
import ctypes
import json
import os
import sys
from importlib.metadata import version

import llama_cpp
import numpy as np

TYPES = {value: name[10:].lower() for name, value in vars(llama_cpp).items() if name.startswith("GGML_TYPE_")}
FLASH = {"auto": -1, "disabled": 0, "enabled": 1}


class Arm:
    """One context of the model.

    Args:
        model: llama.cpp's.
        wishes: of the command line.
        options: ``type_k``, ``type_v``, ``flash_attention`` and ``batch`` where they are not llama.cpp's own.
        log: the lines llama.cpp has printed; it goes on growing.
    """

    def __init__(self, model, wishes, options, log):
        asked = llama_cpp.llama_context_default_params()
        asked.n_ctx = wishes.context
        asked.n_batch = asked.n_ubatch = options.get("batch", wishes.context)
        asked.n_threads = asked.n_threads_batch = wishes.threads
        numbers = {name: number for number, name in TYPES.items()}
        asked.type_k = numbers[options["type_k"]] if "type_k" in options else asked.type_k
        asked.type_v = numbers[options["type_v"]] if "type_v" in options else asked.type_v
        if "flash_attention" in options:
            asked.flash_attn_type = FLASH[options["flash_attention"]]
        before = len(log)
        self.context = llama_cpp.llama_init_from_model(model, asked)
        if not self.context:
            raise SystemExit(f"llama.cpp makes no context for {options}: {''.join(log[before:])[-500:]}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(asked.n_batch, 0, 1)
        self.most = asked.n_batch
        self.facts = {
            "keys": TYPES[asked.type_k],
            "values": TYPES[asked.type_v],
            "flash_attention_asked": next(name for name, value in FLASH.items() if value == asked.flash_attn_type),
            "flash_attention": any("FLASH_ATTN_EXT" in line for line in log[before:]),
            "batch": asked.n_ubatch,
        }

    def logits(self, tokens):
        """float32 [positions, vocabulary] of a text, from an empty cache."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        return np.concatenate([self._chunk(tokens, at) for at in range(0, len(tokens), self.most)])

    def _chunk(self, tokens, start):
        chunk = tokens[start : start + self.most]
        self.batch.n_tokens = len(chunk)
        for row, token in enumerate(chunk):
            self.batch.token[row] = token
            self.batch.pos[row] = start + row
            self.batch.n_seq_id[row] = 1
            self.batch.seq_id[row][0] = 0
            self.batch.logits[row] = True
        if failed := llama_cpp.llama_decode(self.context, self.batch):
            raise SystemExit(f"llama.cpp's pass over {len(chunk)} tokens failed with {failed}")
        found = llama_cpp.llama_get_logits(self.context)
        return np.ctypeslib.as_array(found, shape=(len(chunk), self.vocabulary)).copy()


def main():
    """Load the model once and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--arms", type=json.loads, required=True, help='{"arm": {option: value}}')
    wishes = parser.parse_args()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may reach the pipe
    log = []
    keep = llama_cpp.llama_log_callback(lambda level, text, data: log.append(text.decode(errors="replace")))
    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(wishes.model.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {wishes.model}: {''.join(log)[-500:]}")
    arms = {name: Arm(model, wishes, options, log) for name, options in wishes.arms.items()}
    hello = {
        "version": f"llama-cpp-python {version('llama-cpp-python')}",
        "system": llama_cpp.llama_print_system_info().decode().strip(" |"),
        "vocabulary": next(iter(arms.values())).vocabulary,
        "arms": {name: arm.facts for name, arm in arms.items()},
    }
    out.write(json.dumps(hello).encode() + b"\n")
    out.flush()
    for line in sys.stdin:
        tokens = json.loads(line)["token_ids"]
        for arm in arms.values():
            out.write(arm.logits(tokens).data)
        out.flush()


main()
