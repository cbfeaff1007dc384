"""How much memory a target, a draft model and a long prompt take, above what the imports alone take.

    python benchmarks/memory.py [--model Qwen2.5-Coder-1.5B] [--draft Qwen2.5-Coder-0.5B] [--json results/memory.json]

Resident bytes of a process of its own (/proc/self/statm): after ``from outrider import LLM``; with both models loaded
for the context; after a prompt that fills the context and drafted tokens behind it.  The *first start* packs the
weights and keeps them on disk, a *later start* reads them back and runs the prompt.  The peak is the most there ever
was, mapped weight files included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from result import write
from rich.console import Console
from rich.table import Table

TOKENS = 48
"""Drafted and verified behind the prompt."""
STEPS = ("loaded", "prompted", "peak")
STARTS = {"first start": False, "later start": True}
"""Which of them runs the prompt."""


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def measure(model: str, draft: str, context: int, prompted: bool) -> dict[str, Any]:
    """Load and run in this process; resident bytes at each step."""
    from outrider import LLM, SamplingParams, Speculation  # what everything else is measured against

    seen = {"imports": resident()}
    llm = LLM(model, speculation=Speculation("draft_model", options={"model": draft}), context_length=context)
    seen["loaded"] = resident()
    if prompted:
        dice = random.Random(1)
        prompt = [dice.randrange(1000, 20000) for _ in range(context - TOKENS)]
        llm.generate([prompt], SamplingParams(max_tokens=TOKENS, ignore_eos=True))
        seen["prompted"] = resident()
    seen["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"resident_bytes": seen, "cache_bytes": llm.cache_bytes}


def start(wishes: argparse.Namespace, folder: str, prompted: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--inside", "--context", str(wishes.context)]
    words += ["--model", wishes.model, "--draft", wishes.draft, *(["--prompted"] if prompted else [])]
    done = subprocess.run(words, env=os.environ | {"OUTRIDER_PACKED": folder}, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    """Measure both starts, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen2.5-Coder-1.5B")
    parser.add_argument("--draft", default="Qwen2.5-Coder-0.5B")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--prompted", action="store_true", help=argparse.SUPPRESS)
    wishes = parser.parse_args()
    if wishes.inside:
        sys.stdout.write(json.dumps(measure(wishes.model, wishes.draft, wishes.context, wishes.prompted)) + "\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: start(wishes, folder, prompted) for name, prompted in STARTS.items()}
    table = Table("GB", "imports", *(f"{step}, above" for step in STEPS))
    for name, run in runs.items():
        seen = run["resident_bytes"]
        above = {step: seen[step] - seen["imports"] for step in STEPS if step in seen}
        run["above_imports_bytes"] = above
        table.add_row(
            name, *(f"{size / 1e9:.2f}" if size else "–" for size in (seen["imports"], *map(above.get, STEPS)))
        )
    Console().print(table)
    named = {"model": wishes.model, "draft": wishes.draft, "context": wishes.context}
    write(named | {"runs": runs}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
