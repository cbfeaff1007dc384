"""What a trained head is worth: accepted length, cost and speed on held-out prompts, beside no head."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from outrider.config import Speculation
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.train.bars import Tick, bar
from outrider.train.data.example import Example

_BESIDE: Final = ("none", "ngram")
"""Methods that need no training, plain decoding first."""
PROMPTS: Final = 12
TOKENS: Final = 96
TURNS: Final = 3


def measure_payoff(
    llm: LLM, arms: Mapping[str, Speculation], texts: Sequence[Example], console: Console
) -> list[dict[str, Any]]:
    """Complete held-out prompts with what was trained, with n-grams and with nothing, in turns, and compare.

    Args:
        llm: the target, without speculation.
        arms: what was trained, by name; see :meth:`outrider.train.products.Product.arms`.
        texts: held-out ones; the prompts of the first are completed.
        console: where to print.

    Returns:
        A row for each: accepted length, tokens per second, speedup, and what the costs predict.
    """
    prompts = [example.tokens[: example.answer_start] for example in texts[:PROMPTS]]
    plans = {name: Speculation(name) for name in _BESIDE} | dict(arms)
    with bar("measuring speed", len(prompts), console) as tick:
        rows = compare({name: llm.speculating(plan) for name, plan in plans.items()}, prompts, tick)
    console.print(_table(rows, len(prompts)))
    return rows


def compare(
    arms: Mapping[str, LLM], prompts: Sequence[Sequence[int]], tick: Tick = lambda done, figure: None
) -> list[dict[str, Any]]:
    """Time arms on the same prompts, one at a time and in turns; medians of each prompt's turns are added up.

    Args:
        arms: by name; the first is what the others are compared with.
        prompts: token ids.
        tick: called with how many prompts are done.
    """
    params = SamplingParams(max_tokens=TOKENS)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    rounds: dict[str, list[tuple[int, int, float, float]]] = {name: [] for name in arms}
    for number, prompt in enumerate(prompts, 1):
        times: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(TURNS):
            for name, llm in arms.items():
                llm.clear_prefix_cache()
                begun = time.perf_counter()
                done = llm.generate(list(prompt), params)[0]
                times[name].append(time.perf_counter() - begun - done.seconds.prefill)
                if not turn:
                    tokens = len(done.token_ids)
                    stats, taken = done.speculation, done.seconds
                    rounds[name].append((tokens - 1, stats.rounds, taken.draft, taken.verify))
        for name, turns in times.items():
            seconds[name].append(statistics.median(turns))
        tick(number, "")
    plain, rows = sum(seconds[next(iter(arms))]), []
    for name in arms:
        tokens, count, draft, verify = (sum(column) for column in zip(*rounds[name], strict=True))
        rows.append(
            {
                "method": name,
                "accepted_length": tokens / max(1, count),
                "draft_ms": 1e3 * draft / max(1, count),
                "verify_ms": 1e3 * verify / max(1, count),
                "tokens_per_s": tokens / sum(seconds[name]),
                "speedup": plain / sum(seconds[name]),
            }
        )
    one_row = rows[0]["verify_ms"]
    for row in rows:
        row["predicted"] = row["accepted_length"] * one_row / (row["draft_ms"] + row["verify_ms"])
    return rows


def _table(rows: Sequence[Mapping[str, Any]], prompts: int) -> Table:
    table = Table(title=f"{prompts} held-out prompts, greedy", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("method")
    for heading in ("τ", "draft ms", "verify ms", "tokens/s", "speedup", "predicted"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            f"{row['accepted_length']:.2f}",
            f"{row['draft_ms']:.2f}",
            f"{row['verify_ms']:.2f}",
            f"{row['tokens_per_s']:.1f}",
            f"{row['speedup']:.2f}",
            f"{row['predicted']:.2f}",
        )
    return table
