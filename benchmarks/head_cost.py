"""What a trained head would cost on this machine, before one is trained.

    python benchmarks/head_cost.py [--model Qwen2.5-Coder-1.5B] [--vocabulary 16384] [--inner 1024] [--json FILE]

Each kind of head is begun with random weights in the shape that training would give it, and drafts; what it proposes is
worth nothing, what it costs is what a trained one of that shape costs.  Rounds of all heads take turns, medians count.
A step is one drafted token of a chain, or one pass of a head that drafts several tokens at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from result import write
from rich.console import Console
from rich.table import Table

from outrider import LLM, CacheConfig, SamplingParams, Speculation
from outrider.bench.machine import facts
from outrider.drafters import make_config
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.models.backends import load_model
from outrider.models.base import TargetModel
from outrider.train.recipes.base import recipe_class

CHAINS: Mapping[str, Mapping[str, Any]] = {
    "eagle3": {"num_steps": 4},
    "eagle": {"num_steps": 4},
    "dspark": {"row_cost": 0.0},
    "dflash": {},
    "medusa": {},
    "blockwise": {},
}
"""Options of drafting whole chains, so that every round costs the same."""
STEP_BY_STEP = {"eagle3", "eagle"}
"""Methods that run their head once for every drafted token."""
WINDOW = 12
"""Rounds that one head decodes before the next has its turn."""


def begun(method: str, target: TargetModel, wishes: argparse.Namespace) -> HeadCheckpoint:
    """A head of a method as training begins it."""
    recipe_type = recipe_class(method)
    fields = {item.name for item in dataclasses.fields(recipe_type)}
    options = {"inner": wishes.inner} if "inner" in fields else {}
    head = recipe_type(**options).head(target, torch.arange(wishes.vocabulary), seed=0)
    kind = type(head).__module__.rpartition(".")[2]
    return HeadCheckpoint(kind, head.config, TargetFacts.of(target), head.state_dict())


def rounds(llm: LLM, prompt: list[int]) -> list[tuple[float, float, int]]:
    """Milliseconds of drafting and of the target's pass, and tokens drafted, of each decoding round of one window."""
    engine = llm.engine
    request = engine.submit(prompt, SamplingParams(max_tokens=16 * WINDOW, ignore_eos=True))
    found: list[tuple[float, float, int]] = []
    drafted = 0
    while len(found) < WINDOW:
        before = engine.seconds.copy()
        engine.step()
        spent, now = engine.seconds.minus(before), sum(request.stats.drafted)
        if spent.rounds:
            found.append((1e3 * spent.draft, 1e3 * spent.verify, now - drafted))
        drafted = now
    engine.cancel(request)
    engine.end_cancelled()
    return found[2:]


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--vocabulary", type=int, default=16384, help="draft vocabulary, tokens")
    parser.add_argument("--inner", type=int, default=0, help="width of feed-forward parts; 0 as training chooses it")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    target, tokenizer = load_model(wishes.model)
    arms = {
        method: LLM.from_model(
            target,
            tokenizer,
            speculation=Speculation(make_config(method, {"head": "begun", **options})),
            heads={"begun": begun(method, target, wishes)},
            cache=CacheConfig(prefix_cache=False),
        )
        for method, options in CHAINS.items()
    }
    dice = random.Random(0)
    prompt = [dice.randrange(1000, wishes.vocabulary) for _ in range(200)]
    seen: dict[str, list[tuple[float, float, int]]] = {method: [] for method in arms}
    for _ in range(wishes.repeat):
        for method, llm in arms.items():
            seen[method] += rounds(llm, prompt)
    found = [row(method, values) for method, values in seen.items()]
    table = Table("method", "drafted", "ms a round", "ms a step", "pass over them, ms")
    for entry in found:
        table.add_row(entry["method"], *(f"{value:.1f}" for key, value in entry.items() if key != "method"))
    Console().print(table)
    asked = {key: vars(wishes)[key] for key in ("model", "vocabulary", "inner")}
    write(asked | {"machine": facts(), "heads": found}, wishes.json)
    return 0


def row(method: str, values: list[tuple[float, float, int]]) -> dict[str, Any]:
    """The medians of one head."""
    draft, verify, drafted = (statistics.median(column) for column in zip(*values, strict=True))
    steps = drafted if method in STEP_BY_STEP else 1
    return {"method": method, "drafted": drafted, "round_ms": draft, "step_ms": draft / steps, "verify_ms": verify}


if __name__ == "__main__":
    sys.exit(main())
