"""A study as tables a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.bench.table import interval, number, rules, times

FEW: Final = 10
"""Drafters below which a rank correlation is a hint at most."""


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the drafters, what their speedups go with, and how much that means."""
    told = result["study"]
    console.print(_drafters(told["drafters"]))
    console.print(_correlations(told["correlations"]))
    for line in notes(told):
        console.print(Text(line, style="dim"))


def _drafters(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=f"Drafters, rule: {rules(rows)}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("drafter")
    for heading in ("perplexity", "α", "τ", "ms/draft", "ms/round", "speedup", "95 %", "median"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            number(row["perplexity"]),
            number(row["acceptance_rate"]),
            number(row["mean_accepted_length"]),
            number(row["draft_ms_per_token"]),
            number(row["draft_ms_per_round"]),
            times(row["speedup"]),
            interval(row["speedup_interval"]),
            times(row["median_speedup"]),
        )
    return table


def _correlations(found: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Rank correlation of the speedup with", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for heading in ("n", "Spearman ρ", "p", "Kendall τ-b", "p"):
        table.add_column(heading, justify="right")
    for each in found:
        figures = (number(each[key]) for key in ("spearman", "spearman_p", "kendall", "kendall_p"))
        table.add_row(each["title"], str(each["n"]), *figures)
    return table


def notes(told: Mapping[str, Any]) -> list[str]:
    """What a reader must know of the figures: why some are missing, over what others were taken, how few they are."""
    lines = [
        f"{row['name']}: no perplexity: {row['quality']['reason']}"
        for row in told["drafters"]
        if row["quality"]["reason"] is not None
    ]
    lines += [
        f"{row['name']}: perplexity over the {row['quality']['judged']} of {row['quality']['tokens']} tokens that it "
        "gives a probability; it lacks the others, or drafted nothing there"
        for row in told["drafters"]
        if 0 < row["quality"]["judged"] < row["quality"]["tokens"]
    ]
    count = len(told["drafters"])
    if count < FEW:
        lines.append(f"{count} drafters are few: read the correlations as a hint, and p before ρ")
    return lines
