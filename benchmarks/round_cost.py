"""What Python costs in one decoding round, stage by stage and for each sequence, outside the kernels.

    python benchmarks/round_cost.py [--model SmolLM2-135M] [--sequences 1,8,32] [--json results/round_cost.json]

Several requests decode side by side.  Every figure is CPU time of the thread that runs the round, so what else the
machine does matters little; the time inside the compiled kernels, and inside torch's reductions over whole rows of
logits, is taken off and told apart.  ``--context 200,4000`` shows that no stage grows with the text.

Stages: ``schedule`` shares out rows and pages, ``draft`` is the drafter's own work, ``pack`` lays the batch out,
``forward`` is what the model does around its kernels, ``commit`` moves kept rows, ``observe`` tells the drafter, and
``rest`` is everything else in the round: acceptance, stops, text and records.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from result import write
from rich.console import Console
from rich.table import Table

import outrider.sampling.best
from outrider import LLM, CacheConfig, SamplingParams
from outrider.engine.guard import GuardedDrafter
from outrider.engine.scheduler import Scheduler
from outrider.kv.pool import PagedCache
from outrider.models.backends import LoadOptions, load_model
from outrider.models.native.model import NativeModel
from outrider.tree import TreeBatch

METHODS = ("none", "ngram", "suffix", "draft_model")
STAGES = ("schedule", "draft", "pack", "forward", "commit", "observe", "rest")
KERNELS = "kernels"
OPAQUE = ("draft", "observe")
"""Stages that keep what they call: a draft model's passes are drafting."""
_PHRASE, _TOKENS = 50, range(1000, 20000)


class Watch:
    """Shares a thread's CPU time out among stages, each moment to the innermost one."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book what happens inside under a name."""
        outer = self._open[-1] if self._open else None
        name = outer if outer in OPAQUE and name != KERNELS else name
        self._book(outer)
        self._open.append(name)
        try:
            yield
        finally:
            self._book(self._open.pop())

    def _book(self, name: str | None) -> None:
        now = time.thread_time_ns()
        if name is not None:
            self.spent[name] += now - self._since
        self._since = now

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function whose time is booked under a name."""

        def call(*arguments: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **options)

        return call


class Kernels:
    """Compiled functions or methods, timed; everything else passes through."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if callable(value) and not isinstance(value, type):
            value = self._watch.timed(value, KERNELS)
        setattr(self, name, value)
        return value


@contextmanager
def watched(watch: Watch, models: list[NativeModel]) -> Iterator[None]:
    """Time every stage of the rounds inside."""
    stages = [
        (Scheduler, "schedule", "schedule"),
        (GuardedDrafter, "propose", "draft"),
        (NativeModel, "forward", "forward"),
        (PagedCache, "commit", "commit"),
        (GuardedDrafter, "observe", "observe"),
        (torch.Tensor, "max", KERNELS),
    ]
    patches = [patch.object(owner, name, _method(watch, getattr(owner, name), stage)) for owner, name, stage in stages]
    patches += [patch.object(TreeBatch, "pack", staticmethod(watch.timed(TreeBatch.pack, "pack")))]
    patches += [patch.object(outrider.sampling.best, "cpu", Kernels(outrider.sampling.best.cpu, watch))]
    patches += [patch.object(model, "_decoder", Kernels(model._decoder, watch)) for model in models]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def _method(watch: Watch, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with watch.stage(stage):
            return function(self, *arguments, **options)

    return call


def start(llm: LLM, sequences: int, context: int, rounds: int) -> None:
    """Submit prompts that repeat a phrase each, and run them up to their first tokens."""
    engine = llm.engine
    for sequence in range(sequences):
        dice = random.Random(sequence)
        phrase = [dice.choice(_TOKENS) for _ in range(_PHRASE)]
        prompt = (phrase * (context // _PHRASE + 1))[:context]
        engine.submit(prompt, SamplingParams(max_tokens=16 * rounds, ignore_eos=True))
    while engine._scheduler.waiting or any(request.pending > 1 for request in engine._scheduler.running):
        engine.step()


def microseconds(
    llm: LLM, models: list[NativeModel], sequences: int, context: int, rounds: int
) -> dict[str, list[float]]:
    """CPU time of every round, by stage, for one sequence."""
    start(llm, sequences, context, rounds)
    engine, watch = llm.engine, Watch()
    found: dict[str, list[float]] = {name: [] for name in (*STAGES, KERNELS)}
    with watched(watch, models):
        for _ in range(rounds):
            watch.spent.clear()
            with watch.stage("rest"):
                engine.step()
            for name, values in found.items():
                values.append(watch.spent[name] / 1e3 / sequences)
    for request in [*engine._scheduler.running]:
        engine.cancel(request)
    engine.end_cancelled()
    return found


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--sequences", type=numbers, default=[1, 8, 32])
    parser.add_argument("--context", type=numbers, default=[200])
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    target, tokenizer = load_model(wishes.model, LoadOptions(backend="native"))
    rows = []
    for method in wishes.methods.split(","):
        speculation = {"method": method} | ({"model": "itself"} if method == "draft_model" else {})
        room = CacheConfig(rows=max(wishes.sequences) * (max(wishes.context) + 24 * wishes.rounds), prefix_cache=False)
        llm = LLM.from_model(target, tokenizer, speculation=speculation, draft_models={"itself": target}, cache=room)
        for sequences in wishes.sequences:
            for context in wishes.context:
                found = microseconds(llm, [target], sequences, context, wishes.rounds)
                costs = {name: statistics.median(values) for name, values in found.items()}
                costs["python"] = statistics.median(map(sum, zip(*(found[name] for name in STAGES), strict=True)))
                rows.append({"method": method, "sequences": sequences, "context": context, **costs})
    columns = (*STAGES, "python", KERNELS)
    table = Table("method", "sequences", "context", *columns, title="µs of CPU time per sequence and round")
    for row in rows:
        table.add_row(row["method"], str(row["sequences"]), str(row["context"]), *(f"{row[c]:.1f}" for c in columns))
    Console(width=150).print(table)
    write({"model": wishes.model, "rounds": wishes.rounds, "median_us_per_sequence": rows}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
