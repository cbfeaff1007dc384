"""Time prompts of a given length through Outrider and llama.cpp, in turns, and tell the ratio.

See README.md in this folder for the set-up.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from compare import start
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write_file

from outrider.bench.machine import facts
from outrider.models.loading import open_model


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--llama", required=True, help="python of the environment that holds llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    result = measure(wishes)
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in result["tokens_per_s"].items())
    Console().print(f"prompts of {wishes.tokens} tokens, tokens/s: {speeds}; {result['ratio_of_prefill']:.2f}×")
    write_file(result, wishes.json)
    return 0


def measure(wishes: argparse.Namespace) -> dict[str, Any]:
    """Plain arms alone; every prompt is new, so that no engine finds its beginning in a cache."""
    engines = start(argparse.Namespace(**vars(wishes), draft=None, methods={}, llama_draft=False, openvino=None))
    vocabulary, order = open_model(wishes.target).tokenizer.vocab_size, random.Random(wishes.seed)
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for _ in track(range(wishes.repeat), description="prompts", console=Console(stderr=True)):
        ids = [order.randrange(vocabulary // 2) for _ in range(wishes.tokens)]  # ordinary tokens come first
        for engine in order.sample(engines, len(engines)):
            answer = engine.ask({"token_ids": ids, "max_tokens": 1, "arm": "plain"})
            seconds[engine.name].append(answer["prefill_s"])
    speeds = {name: wishes.tokens / statistics.median(times) for name, times in seconds.items()}
    return {
        "machine": facts(),
        "versions": {engine.name: engine.version for engine in engines},
        "builds": {engine.name: engine.build for engine in engines},
        "target": Path(wishes.target).name,
        "tokens": wishes.tokens,
        "threads": wishes.threads,
        "tokens_per_s": speeds,
        "ratio_of_prefill": speeds["outrider"] / speeds["llama.cpp"],
        "seconds": seconds,
    }


if __name__ == "__main__":
    raise SystemExit(main())
