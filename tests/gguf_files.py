"""Small GGUF files for tests, written with the gguf package from real transformers models."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2"]
END, START, TOOL = "<|im_end|>", "<|im_start|>", "<tool>"
TOKENS = [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), START, END, TOOL, "[PAD266]", "[PAD267]"]
KINDS = [1] * (len(ALPHABET) + len(MERGES)) + [3, 3, 4, 5, 5]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass
class TinyFile:
    """What to write; change a field to make a file that is wrong in one way."""

    architecture: str = "llama"
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)  # added or replaced; None takes an entry out
    tensors: dict[str, np.ndarray | None] = field(default_factory=dict)  # the same for tensors
    quantization: str = "F32"
    seed: int = 0

    def module(self) -> torch.nn.Module:
        """The transformers model the file is made from."""
        values = {
            "vocab_size": len(TOKENS),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "tie_word_embeddings": False,
        } | self.config
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            module = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(self.architecture, **values), attn_implementation="eager"
            )
            for parameter in module.parameters():
                parameter.data.normal_(0.0, 0.2)
        return module.eval().requires_grad_(False)

    def write(self, path: Path) -> Path:
        """Write the file, with names and row orders from llama.cpp's converter."""
        module = self.module()
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in (self._metadata(module.config) | self.metadata).items():
            if value is not None:
                _add(writer, key, value)
        for name, (values, kind) in self._tensors(module).items():
            writer.add_tensor(name, values, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _metadata(self, config: Any) -> dict[str, Any]:
        name = self.architecture
        return {
            f"{name}.context_length": config.max_position_embeddings,
            f"{name}.embedding_length": config.hidden_size,
            f"{name}.block_count": config.num_hidden_layers,
            f"{name}.feed_forward_length": config.intermediate_size,
            f"{name}.attention.head_count": config.num_attention_heads,
            f"{name}.attention.head_count_kv": config.num_key_value_heads,
            f"{name}.attention.key_length": config.head_dim if hasattr(config, "head_dim") else None,
            f"{name}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
            f"{name}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": KINDS,
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": TOKENS.index(START),
            "tokenizer.ggml.eos_token_id": TOKENS.index(END),
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template": TEMPLATE,
        }

    def _tensors(self, module: Any) -> dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]:
        config = module.config
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture)
        names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
        written: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] = {}
        for name, parameter in module.named_parameters():
            values = parameter.numpy()
            part = name.split(".")[-2]
            if self.architecture == "llama" and part in heads:
                shape = (heads[part], 2, -1, *values.shape[1:])
                values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
            kind = gguf.GGMLQuantizationType[self.quantization if values.ndim == 2 else "F32"]
            packed = gguf.quants.quantize(values, kind)
            written[names.get_name(name, try_suffixes=(".weight", ".bias"))] = packed, kind
        for name, replaced in self.tensors.items():
            written.pop(name, None)
            if replaced is not None:
                written[name] = replaced, gguf.GGMLQuantizationType.F32
        return written


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


def entry(key: str, kind: int, payload: bytes) -> bytes:
    """One metadata entry as the format lays it out."""
    return len(key).to_bytes(8, "little") + key.encode() + kind.to_bytes(4, "little") + payload


def tensor_entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """One entry of the tensor list; `shape` in the file's order, innermost first."""
    dimensions = b"".join(size.to_bytes(8, "little") for size in shape)
    head = len(name).to_bytes(8, "little") + name.encode() + len(shape).to_bytes(4, "little")
    return head + dimensions + kind.to_bytes(4, "little") + offset.to_bytes(8, "little")


def raw_file(
    entries: list[bytes] = (),
    tensors: list[bytes] = (),
    *,
    data: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file from its pieces, with `data` zero bytes after the aligned header."""
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    head = b"GGUF" + version.to_bytes(4, "little")
    head += tensor_count.to_bytes(8, "little") + entry_count.to_bytes(8, "little")
    head += b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)
