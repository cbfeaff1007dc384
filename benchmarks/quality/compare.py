"""How close Outrider's and llama.cpp's next-token distributions are to those of the same file in fp32.

See README.md in this folder for the set-up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from divergence import Scores, ratio_of_means, score, summarise
from rich.console import Console
from rich.progress import track
from rich.table import Table
from texts import Text, read_texts, shared_starts

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write_file

from outrider.bench.machine import facts
from outrider.kernels.native import set_threads
from outrider.kv.pool import PagedCache
from outrider.models.backends import LoadOptions, load_model
from outrider.models.base import TargetModel
from outrider.models.loading import ModelFiles, find, open_model
from outrider.models.native.model import NativeModel
from outrider.tree import SequenceRows, TreeBatch

HERE: Final = Path(__file__).parent
REFERENCE, OURS, THEIRS = "reference", "outrider", "llama.cpp"
ARMS: Final = {
    THEIRS: {},
    f"{THEIRS}, f32 cache": {"type_k": "f32", "type_v": "f32", "flash_attention": "disabled"},
}
"""llama.cpp as it comes, and with nothing rounded in attention."""
_PAGE: Final = 16


class Engine:
    """One of our backends, a text at a time.

    Args:
        model: loaded.
        longest: most tokens of a text.
    """

    def __init__(self, model: TargetModel, longest: int) -> None:
        self.model = model
        self._cache = PagedCache(-(-longest // _PAGE), _PAGE)

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """[positions, vocabulary] of a text, from an empty cache."""
        self._cache.extend("text", len(tokens))
        batch = TreeBatch.pack([SequenceRows("text", 0, tuple(tokens), None, all_logits=True)])
        logits = self.model.forward(batch, self._cache).logits
        self._cache.release("text")
        return logits

    @property
    def cache_dtype(self) -> str:
        """Precision of keys and values, as they lie in the cache."""
        store = self._cache.layers[0]
        return f"{store.keys.dtype}/{store.values.dtype}".replace("torch.", "")


class Peer:
    """The llama.cpp process."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.facts: dict[str, Any] = json.loads(self._read(None))

    def logits(self, tokens: Sequence[int]) -> dict[str, torch.Tensor]:
        """[positions, vocabulary] of each arm."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"token_ids": list(tokens)}).encode() + b"\n")
        self._process.stdin.flush()
        shape = len(tokens), int(self.facts["vocabulary"])
        return {arm: self._array(shape) for arm in self.facts["arms"]}

    def _array(self, shape: tuple[int, int]) -> torch.Tensor:
        data = self._read(4 * shape[0] * shape[1])
        return torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)

    def _read(self, size: int | None) -> bytes:
        """So many bytes, or a line."""
        assert self._process.stdout is not None
        data = self._process.stdout.readline() if size is None else self._process.stdout.read(size)
        if not data or (size is not None and len(data) < size):
            raise SystemExit(f"llama.cpp's process ended with code {self._process.wait()}")
        return data


def main() -> int:
    """Compare, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file, or its name in the models folder")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="JSONL files")
    parser.add_argument("--fields", nargs="+", default=["turns", "reference"], help="what makes up a text")
    parser.add_argument("--select", help="rows of each file that take part, such as i%%2==0")
    parser.add_argument("--count", type=int, default=200, help="texts, the same number from each file")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of a text")
    parser.add_argument("--skip", type=int, default=1, help="leading positions of a text that are told apart")
    parser.add_argument("--chat", action="store_true", help="put each text into the model's chat template")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama", required=True, help="python of the environment that holds llama-cpp-python")
    parser.add_argument("--llama-arms", type=json.loads, default=ARMS, help=f"default: {json.dumps(ARMS)}")
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    torch.set_num_threads(wishes.threads)
    set_threads(wishes.threads)
    texts = read_texts(wishes.texts, wishes.fields, wishes.select, wishes.count)
    begun = time.perf_counter()
    result = compare(wishes, texts) | {"seconds": time.perf_counter() - begun}
    show(result)
    write_file(result, wishes.json)
    return 0


def compare(wishes: argparse.Namespace, texts: Sequence[Text]) -> dict[str, Any]:
    """Run every text through the reference and the engines; logits live no longer than their text."""
    files = open_model(wishes.model)
    encoded = [encode(files, text, wishes) for text in texts]
    reference = Engine(load_model(wishes.model, LoadOptions(backend="hf", dtype="float32"))[0], wishes.tokens)
    ours = Engine(load_model(wishes.model, LoadOptions(backend="native"))[0], wishes.tokens)
    peer = start(wishes)
    scores: list[dict[str, Scores]] = []
    for tokens in track(encoded, description="comparing", console=Console(stderr=True)):
        seen = tokens[:-1]
        expected = reference.logits(seen)
        found = {REFERENCE: expected, OURS: ours.logits(seen)} | peer.logits(seen)
        scores.append(score(expected, found, tokens[1:]))
    return {
        "machine": facts(),
        "model": {"name": files.name, "kinds": tensor_kinds(files)},
        "texts": {
            "files": dict(Counter(text.file for text in texts)),
            "fields": wishes.fields,
            "select": wishes.select,
            "form": "chat template" if wishes.chat else "raw",
            "count": len(texts),
            "most_tokens": wishes.tokens,
            "leading_positions_told_apart": wishes.skip,
        },
        "threads": wishes.threads,
        "engines": {
            REFERENCE: {"backend": "hf", "weights": "dequantised to float32", "cache": reference.cache_dtype},
            OURS: {"backend": "native", "weights": NativeModel.precision, "cache": ours.cache_dtype},
            THEIRS: peer.facts,
        },
    } | figures(texts, scores, shared_starts([tokens[:-1] for tokens in encoded]), wishes.skip)


def encode(files: ModelFiles, text: Text, wishes: argparse.Namespace) -> list[int]:
    """The tokens of a text, cut off; every engine gets the same."""
    if wishes.chat:
        shown = files.tokenizer.apply_chat_template([{"role": "user", "content": text.text}])
        tokens = files.tokenizer.encode(shown, add_special_tokens=False)
    else:
        tokens = files.tokenizer.encode(text.text)
    if len(tokens) < wishes.skip + 2:
        raise SystemExit(f"{text.file}: {text.id} has but {len(tokens)} tokens; leave it out by --select")
    return tokens[: wishes.tokens]


def tensor_kinds(files: ModelFiles) -> dict[str, int]:
    """Tensors of each kind in the file, and what the embedding is."""
    if files.gguf is None:
        raise SystemExit(f"{files.name} is not a GGUF file, which is what llama.cpp reads")
    return dict(Counter(tensor.kind.name for tensor in files.gguf[0].tensors.values()))


def start(wishes: argparse.Namespace) -> Peer:
    """Start llama.cpp."""
    options = {"model": find(wishes.model)[0], "context": max(256, wishes.tokens), "threads": wishes.threads}
    command = [wishes.llama, str(HERE / "llama_cpp_worker.py"), "--arms", json.dumps(wishes.llama_arms)]
    return Peer(command + [part for name, value in options.items() for part in (f"--{name}", str(value))])


def figures(
    texts: Sequence[Text], whole: Sequence[Mapping[str, Scores]], shared: Sequence[int], skip: int
) -> dict[str, Any]:
    """All that is told of the scores: of the positions after the leading ones, and of those in "leading" alone.

    Args:
        texts: in order.
        whole: scores of every position of each.
        shared: how many of them an earlier text had too; each context counts once.
        skip: how many are leading ones.
    """
    starts = [slice(max(skip, known), None) for known in shared]
    leading = [slice(known, max(skip, known)) for known in shared]
    arms = {name: [each[name].at(part) for each, part in zip(whole, starts, strict=True)] for name in whole[0]}
    first = {name: [each[name].at(part) for each, part in zip(whole, leading, strict=True)] for name in arms}
    engines = {name: mine for name, mine in arms.items() if name != REFERENCE}
    files = np.array([text.file for text in texts])
    return {
        "positions": sum(len(text.divergence) for text in arms[REFERENCE]),
        "positions_shared_with_earlier_texts": sum(shared),
        "quality": {name: summarise(mine) for name, mine in arms.items()},
        "kl_over": {name: ratio_of_means(arms[OURS], mine) for name, mine in engines.items() if name != OURS},
        "leading": {name: summarise(mine) for name, mine in first.items()} if skip else None,
        "mean_kl_by_file": {
            file: {
                name: summarise([mine[i] for i in np.flatnonzero(files == file)])["mean_kl"]
                for name, mine in engines.items()
            }
            for file in dict.fromkeys(files.tolist())
        },
        "samples": [
            {
                "file": text.file,
                "id": text.id,
                "positions": len(arms[REFERENCE][i].divergence),
                "kl": {name: float(mine[i].divergence.sum()) for name, mine in engines.items()},
                "agrees": {name: int(mine[i].agrees.sum()) for name, mine in engines.items()},
                "surprise": {name: float(mine[i].surprise.sum()) for name, mine in arms.items()},
            }
            for i, text in enumerate(texts)
        ],
    }


def show(result: Mapping[str, Any]) -> None:
    """Print a table."""
    texts, leading = result["texts"], result["leading"]
    table = Table("engine", "mean KL", "median", "p99", "max", "argmax", "ppl", "leading")
    for name, row in result["quality"].items():
        kl = [f"{row[key]:.5f}" for key in ("mean_kl", "median_kl", "p99_kl")]
        first = f"{leading[name]['mean_kl']:.3f}" if leading else ""
        table.add_row(name, *kl, f"{row['max_kl']:.3f}", f"{row['agreement']:.2%}", f"{row['perplexity']:.4f}", first)
    console = Console(width=110)
    console.print(
        f"{result['model']['name']}, {texts['count']} texts ({texts['form']}), {result['positions']} positions"
    )
    console.print(table)
    for name, over in result["kl_over"].items():
        low, high = over["interval"] or (None, None)
        span = "" if low is None else f" ({low:.3f} to {high:.3f})"
        console.print(f"outrider's mean KL over that of {name}: {over['ratio']:.3f}{span}", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
