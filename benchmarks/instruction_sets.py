"""What each instruction set's kernels cost beside the best this CPU has: prompts and plain decoding.

    python benchmarks/instruction_sets.py [--model SmolLM2-135M] [--turns 5] [--json results/instruction_sets.json]

The same prompt is completed with each set in turn, and the texts must be equal.  A figure is the median over turns of a
set's time over the best set's in the same turn.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

from result import write
from rich.console import Console
from rich.table import Table

from outrider import LLM, CacheConfig, SamplingParams
from outrider.bench.machine import facts
from outrider.kernels.native import kernel_names, use_kernels

PROMPT = 64
TOKENS = 16


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    wish = parser.parse_args()
    llm = LLM(wish.model, speculation="none", backend="native", cache=CacheConfig(prefix_cache=False))
    prompt = random.Random(0).sample(range(1000, 20000), PROMPT)
    names, texts = kernel_names(), set()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(wish.turns):
        for name in names:
            use_kernels(name)
            done = llm.generate(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))[0]
            texts.add(done.token_ids)
            found[name].append((done.seconds.prefill, done.seconds.decode / done.seconds.rounds))
    assert len(texts) == 1, "the instruction sets gave different texts"
    table = Table("kernels", "prompt, × the best set's time", "one token", title=wish.model)
    rows = {}
    for name in names:
        ratios = [
            statistics.median(mine[part] / best[part] for mine, best in zip(found[name], found[names[0]], strict=True))
            for part in (0, 1)
        ]
        rows[name] = {"prompt": ratios[0], "token": ratios[1]}
        table.add_row(name, *(f"{ratio:.2f}" for ratio in ratios))
    Console().print(table)
    write({"machine": facts(), "model": wish.model, "turns": wish.turns, "over_best": rows}, wish.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
