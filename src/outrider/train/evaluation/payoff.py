"""The speedup of a trained drafter: accepted length, cost and speed on held-out prompts, beside untrained methods."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from outrider.bench.figures import number
from outrider.bench.table import narrow_table
from outrider.config import Speculation
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.train.bars import Tick, bar
from outrider.train.data.example import Example

_BESIDE: Final = ("none", "ngram")
"""Methods to compare with, plain decoding first."""
_COLUMNS: Final = {
    "τ": ("accepted_length", 2),
    "draft ms": ("draft_ms", 2),
    "verify ms": ("verify_ms", 2),
    "tokens/s": ("tokens_per_s", 1),
    "speedup": ("speedup", 2),
    "predicted": ("predicted", 2),
}
"""Headings of figures, with their keys and decimals."""
PROMPTS: Final = 12
TOKENS: Final = 96
TURNS: Final = 3


def measure_payoff(
    llm: LLM, arms: Mapping[str, Speculation], texts: Sequence[Example], console: Console
) -> list[dict[str, Any]]:
    """Complete held-out prompts with the trained drafter, with n-grams and without drafts, and compare.

    Args:
        llm: the target, without speculation.
        arms: the trained drafters, by name; see :meth:`outrider.train.products.Product.arms`.
        texts: held-out texts; the first prompts are completed.
        console: where to print.

    Returns:
        A row for each method: accepted length, tokens per second, speedup, and the speedup predicted from costs.
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
    """Time methods on the same prompts, in turns; each prompt counts with its median.

    Args:
        arms: the methods by name; the first is the baseline.
        prompts: token ids.
        tick: called with the number of finished prompts.
    """
    params = SamplingParams(max_tokens=TOKENS)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    rounds: dict[str, list[tuple[int, int, float, float]]] = {name: [] for name in arms}
    for done, prompt in enumerate(prompts, 1):
        times: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(TURNS):
            for name, llm in arms.items():
                llm.clear_prefix_cache()
                begun = time.perf_counter()
                text = llm.generate(list(prompt), params)[0]
                times[name].append(time.perf_counter() - begun - text.seconds.prefill)
                if not turn:
                    stats, taken = text.speculation, text.seconds
                    rounds[name].append((len(text.token_ids) - 1, stats.rounds, taken.draft, taken.verify))
        for name, turns in times.items():
            seconds[name].append(statistics.median(turns))
        tick(done, "")
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
    table = narrow_table(f"{prompts} held-out prompts, greedy", ("method", *_COLUMNS))
    for row in rows:
        table.add_row(row["method"], *(number(row[key], digits) for key, digits in _COLUMNS.values()))
    return table
