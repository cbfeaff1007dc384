"""What Python costs in one decoding round, stage by stage and for each sequence, outside the kernels.

    python benchmarks/round_cost.py [--model SmolLM2-135M] [--sequences 1,8,32] [--json results/round_cost.json]

Several requests decode side by side.  Every figure is CPU time of the thread that runs the round, so what else the
machine does matters little; the time inside the compiled kernels, and inside torch's reductions over whole rows of
logits, is taken off and told apart.  ``--context 200,4000`` shows that no stage grows with the text.

Stages are the engine's own: ``schedule``, ``draft`` (proposing and observing), ``pack``, ``verify`` (what the model
does around its kernels), ``decide``, ``commit``, and ``rest``, which is everything between them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from result import write
from rich.console import Console
from rich.table import Table

import outrider.sampling.best
from outrider import LLM, CacheConfig, SamplingParams
from outrider.metrics import Clock
from outrider.models.backends import LoadOptions, load_model
from outrider.models.native.model import NativeModel

METHODS = ("none", "ngram", "suffix", "draft_model")
STAGES = ("schedule", "draft", "pack", "verify", "decide", "commit", "rest")
KERNELS = "kernels"
_PHRASE, _TOKENS = 50, range(1000, 20000)


class Watch(Clock):
    """Shares a thread's CPU time out among stages, each moment to the innermost one."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: Counter[str] = Counter()
        self._open = ["rest"]
        self._since = 0

    def __call__(self, stage: str) -> Any:
        """A context that books what happens inside under a name."""
        return _Watched(self, stage)

    def restart(self) -> None:
        """The engine begins a round."""

    def seconds(self, stage: str) -> float:
        """What a stage has taken in this round."""
        return self.spent[stage] / 1e9

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.spent.values()) / 1e9

    def begin(self) -> None:
        """Forget the round before."""
        self.spent.clear()
        self._since = time.thread_time_ns()

    def book(self) -> None:
        """Give what has passed to the innermost stage."""
        now = time.thread_time_ns()
        self.spent[self._open[-1]] += now - self._since
        self._since = now

    def enter(self, stage: str) -> None:
        """A stage begins."""
        self.book()
        self._open.append(stage)

    def leave(self) -> None:
        """The innermost stage ends."""
        self.book()
        self._open.pop()

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.enter(KERNELS)
            try:
                return function(*arguments, **options)
            finally:
                self.leave()

        return call


class _Watched(NamedTuple):
    watch: Watch
    stage: str

    def __enter__(self) -> None:
        self.watch.enter(self.stage)

    def __exit__(self, *error: object) -> None:
        self.watch.leave()


class Kernels:
    """Compiled functions or methods, timed; everything else passes through."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if callable(value) and not isinstance(value, type):
            value = self._watch.timed(value)
        setattr(self, name, value)
        return value


@contextmanager
def watched(watch: Watch, llm: LLM, models: list[NativeModel]) -> Iterator[None]:
    """Time every stage of the rounds inside."""
    greatest = torch.Tensor.max
    with ExitStack() as stack:
        stack.enter_context(patch.object(llm.engine, "clock", watch))
        stack.enter_context(patch.object(torch.Tensor, "max", lambda *given, **named: rows_max(*given, **named)))
        rows_max = watch.timed(greatest)
        stack.enter_context(patch.object(outrider.sampling.best, "cpu", Kernels(outrider.sampling.best.cpu, watch)))
        for model in models:
            stack.enter_context(patch.object(model, "_decoder", Kernels(model._decoder, watch)))
        yield


def start(llm: LLM, sequences: int, context: int, rounds: int) -> None:
    """Submit prompts that repeat a phrase each, and run them up to their first tokens."""
    engine = llm.engine
    for sequence in range(sequences):
        dice = random.Random(sequence)
        phrase = [dice.choice(_TOKENS) for _ in range(_PHRASE)]
        prompt = (phrase * (context // _PHRASE + 1))[:context]
        engine.submit(prompt, SamplingParams(max_tokens=16 * rounds, ignore_eos=True))
    while engine.scheduler.waiting or any(request.pending > 1 for request in engine.scheduler.running):
        engine.step()


def microseconds(
    llm: LLM, models: list[NativeModel], sequences: int, context: int, rounds: int
) -> dict[str, list[float]]:
    """CPU time of every round, by stage, for one sequence."""
    start(llm, sequences, context, rounds)
    engine, watch = llm.engine, Watch()
    found: dict[str, list[float]] = {name: [] for name in (*STAGES, KERNELS)}
    with watched(watch, llm, models):
        for _ in range(rounds):
            watch.begin()
            engine.step()
            watch.book()
            for name, values in found.items():
                values.append(watch.spent[name] / 1e3 / sequences)
    for request in [*engine.scheduler.running]:
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
