"""A study as tables a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.bench.table import interval, number, rules, times

FEW: Final = 10
"""Drafters below which a rank correlation is a hint at most."""


class Cells(NamedTuple):
    """A table, whatever it is printed as."""

    headings: Sequence[str]
    """Of each column; the first is of text, the others of figures."""
    lines: Sequence[Sequence[str]]


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the drafters, what their speedups go with, and how much that means."""
    told = result["study"]
    console.print(_shown(drafters(told["drafters"]), f"Drafters, rule: {rules(told['drafters'])}"))
    console.print(_shown(correlations(told["correlations"]), "Rank correlations"))
    for line in notes(told):
        console.print(Text(line, style="dim"))


def drafters(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """One line per drafter."""
    headings = ("drafter", "perplexity", "α", "τ", "ms/draft", "ms/round", "speedup", "95 %", "median")
    keys = ("perplexity", "acceptance_rate", "mean_accepted_length", "draft_ms_per_token", "draft_ms_per_round")
    return Cells(
        headings,
        [
            (
                row["name"],
                *(number(row[key]) for key in keys),
                times(row["speedup"]),
                interval(row["speedup_interval"]),
                times(row["median_speedup"]),
            )
            for row in rows
        ],
    )


def correlations(found: Sequence[Mapping[str, Any]]) -> Cells:
    """One line per measure that the speedup is correlated with."""
    keys = ("spearman", "spearman_p", "kendall", "kendall_p")
    lines = [(each["title"], str(each["n"]), *(number(each[key]) for key in keys)) for each in found]
    return Cells(("speedup with", "n", "Spearman ρ", "p", "Kendall τ-b", "p"), lines)


def _shown(cells: Cells, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for place, heading in enumerate(cells.headings):
        table.add_column(heading, justify="right" if place else "left")
    for line in cells.lines:
        table.add_row(*line)
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
