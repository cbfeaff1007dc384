"""How long a model takes to load: packed for the first time, and from the packed cache.

    python benchmarks/load_time.py [--model Qwen2.5-Coder-1.5B] [--repeat 5] [--json results/load_time.json]

Every load is a process of its own, timed after its imports, the model's file in the system's memory.  The two kinds
alternate; the figure is the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from result import write
from rich.console import Console
from rich.table import Table

INSIDE = """
import sys, time
import outrider.llm
from outrider.models.backends import LoadOptions, load_model
start = time.perf_counter()
load_model(sys.argv[1], LoadOptions(backend="native"))
print(time.perf_counter() - start)
"""
KINDS = ("first start", "later start")


def seconds(model: str, folder: str) -> float:
    """Load in a process of its own; packed models lie in the folder."""
    words = [sys.executable, "-c", INSIDE, model]
    done = subprocess.run(words, env=os.environ | {"OUTRIDER_PACKED": folder}, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def main() -> int:
    """Measure both kinds, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen2.5-Coder-1.5B")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(wishes.repeat):
        with tempfile.TemporaryDirectory() as folder:
            for kind in KINDS:
                taken[kind].append(seconds(wishes.model, folder))
    table = Table("start", "median s", "least", "most")
    medians = {kind: statistics.median(times) for kind, times in taken.items()}
    for kind, times in taken.items():
        table.add_row(kind, *(f"{value:.2f}" for value in (medians[kind], min(times), max(times))))
    Console().print(table)
    write({"model": wishes.model, "seconds": taken, "median_seconds": medians}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
