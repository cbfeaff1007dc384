"""What one decoding round costs as the text grows: the engine's own work must not grow with it.

    python benchmarks/round_cost.py [--model SmolLM2-135M] [--json results/round_cost.json]

Each method decodes after prompts of different length, interleaved.  ``draft`` is the drafter's time, ``other`` all of
the engine outside the models' passes; both grow with the rows of a round, which are told, and not with the text.
``verify`` is the target's pass, whose attention does read the whole text.
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

LENGTHS = (200, 4000)
METHODS = ("none", "ngram", "suffix")
ROUNDS = 24
PHASES = ("draft", "verify", "other")
COLUMNS = ("rows", *PHASES)
"""What is told of a round: rows of the pass, milliseconds of each phase."""


def milliseconds(llm: LLM, length: int) -> dict[str, list[float]]:
    """Rows of each decoding round and its time by phase, after a prompt of this length."""
    dice = random.Random(length)
    phrase = [dice.randrange(1000, 20000) for _ in range(50)]
    prompt = (phrase * (length // 50 + 1))[:length]
    engine = llm.engine
    request = engine.submit(prompt, SamplingParams(max_tokens=8 * ROUNDS, ignore_eos=True))
    found: dict[str, list[float]] = {name: [] for name in COLUMNS}
    drafted = 0
    while not engine.idle and len(found["other"]) < ROUNDS:
        before = engine.seconds.copy()
        progress = engine.step()
        spent = engine.seconds.minus(before)
        rows, drafted = 1 + sum(request.stats.drafted) - drafted, sum(request.stats.drafted)
        if spent.rounds:
            found["rows"].append(rows)
            for phase in PHASES:
                found[phase].append(1e3 * getattr(spent, phase))
    for item in progress:
        engine.cancel(item.request)
    engine.end_cancelled()
    return found


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    target, tokenizer = load_model(wishes.model, LoadOptions(backend="hf"))
    cold = CacheConfig(prefix_cache=False)
    arms = {name: LLM.from_model(target, tokenizer, speculation=name, cache=cold) for name in METHODS}
    seen: dict[tuple[str, int], dict[str, list[float]]] = {}
    for _ in range(wishes.repeat):
        for length in LENGTHS:
            for name, llm in arms.items():
                into = seen.setdefault((name, length), {column: [] for column in COLUMNS})
                for column, values in milliseconds(llm, length).items():
                    into[column] += values
    rows = [
        {"method": name, "context": length} | {column: statistics.median(values) for column, values in found.items()}
        for (name, length), found in seen.items()
    ]
    for row in rows:
        row["engine_share"] = row["other"] / sum(row[phase] for phase in PHASES)
    table = Table("method", "context", "rows", "draft ms", "verify ms", "other ms", "engine's share")
    for row in sorted(rows, key=lambda row: (row["method"], row["context"])):
        figures = [f"{row[phase]:.3f}" for phase in PHASES]
        table.add_row(row["method"], str(row["context"]), f"{row['rows']:g}", *figures, f"{row['engine_share']:.1%}")
    Console().print(table)
    write({"model": wishes.model, "rounds": ROUNDS * wishes.repeat, "median_ms": rows}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
