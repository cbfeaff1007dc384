"""What the prefix cache saves, and what it costs a round that has no use for it.

    python benchmarks/prefix_cache.py [--model SmolLM2-135M] [--json results/prefix_cache.json]

Each prompt is asked with the cache off, with it on but nothing known, and once more; the three are interleaved.
``prompt`` is the time of the passes that read the prompt, ``other`` the engine's own time per decoding round, in which
pages fill and are shared.
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
from outrider.models.backends import LoadOptions, load_model

LENGTHS = (100, 1000)
TOKENS = 48
ARMS = ("off", "unknown", "known")


def measure(llm: LLM, prompt: list[int]) -> dict[str, float]:
    """Milliseconds of one request."""
    before = llm.engine.seconds.copy()
    done = llm.generate(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))[0]
    spent = llm.engine.seconds.minus(before)
    return {
        "prompt_ms": 1e3 * spent.prefill,
        "other_ms": 1e3 * spent.other / spent.rounds,
        "cached_tokens": done.cached_tokens,
    }


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    target, tokenizer = load_model(wishes.model, LoadOptions(backend=wishes.backend))
    off, on = (
        LLM.from_model(target, tokenizer, speculation=None, cache=CacheConfig(prefix_cache=choice))
        for choice in (False, True)
    )
    seen: dict[tuple[int, str], list[dict[str, float]]] = {}
    dice = random.Random(0)
    for turn in range(wishes.repeat + 1):
        for length in LENGTHS:
            prompt = [dice.randrange(1000, 20000) for _ in range(length)]
            found = [measure(llm, prompt) for llm in (off, on, on)]
            if turn:  # the first passes allocate
                for arm, figures in zip(ARMS, found, strict=True):
                    seen.setdefault((length, arm), []).append(figures)
    rows = [
        {"prompt_tokens": length, "prefix": arm}
        | {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for (length, arm), runs in seen.items()
    ]
    table = Table("prompt tokens", "prefix cache", "taken over", "prompt ms", "other ms per round")
    for row in rows:
        figures = (f"{row[name]:.3g}" for name in ("prompt_ms", "other_ms"))
        table.add_row(str(row["prompt_tokens"]), row["prefix"], f"{row['cached_tokens']:.0f}", *figures)
    Console().print(table)
    write({"model": wishes.model, "repeat": wishes.repeat, "median": rows}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
