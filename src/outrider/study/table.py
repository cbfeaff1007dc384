"""The result of a study as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.bench.figures import INTERVAL, LENGTH, SPEEDUP, Column, number, rate, rules, times
from outrider.bench.table import narrow_table
from outrider.bench.verdict import gain_of, verdict

FEW: Final = 10
"""Below this many drafters, a rank correlation is only a hint."""
_SPEED: Final = ("τ", "speedup", "95 %", "median")
_QUALITY: Final = ("perplexity", "α", "ms/draft", "ms/round")
"""Columns of the two tables of drafters on a terminal."""


def short(name: str) -> str:
    """A drafter's name without colons, and without a path that repeats the method."""
    method, *rest = name.split(":")
    return " ".join([method, *(part for part in rest if part != method)])


def _rate(row: Mapping[str, Any]) -> str:
    if "tested" not in row:  # a study of an earlier version
        return number(row["acceptance_rate"])
    return rate(row["acceptance_rate"], row["tested"])


def _number(heading: str, key: str) -> Column:
    return heading, lambda row: number(row[key])


_COLUMNS: Final[Sequence[Column]] = (
    ("drafter", lambda row: short(row["name"])),
    _number("perplexity", "perplexity"),
    ("α", _rate),
    LENGTH,
    _number("ms/draft", "draft_ms_per_token"),
    _number("ms/round", "draft_ms_per_round"),
    SPEEDUP,
    INTERVAL,
    ("median", lambda row: times(row["median_speedup"])),
)
_CORRELATIONS: Final[Sequence[Column]] = (
    ("speedup with", itemgetter("title")),
    ("n", lambda row: str(row["n"])),
    _number("Spearman ρ", "spearman"),
    _number("p", "spearman_p"),
    _number("Kendall τ-b", "kendall"),
    _number("p", "kendall_p"),
)


class Cells(NamedTuple):
    """The cells of a table, in any format."""

    headings: Sequence[str]
    """The first column is text, the others are figures."""
    lines: Sequence[Sequence[str]]

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Cells:
        """The cells of rows."""
        return cls([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, the drafters, the correlations and notes."""
    told = result["study"]
    gains = [gain_of(short(row["name"]), row) for row in told["drafters"]]
    console.print(Text(verdict(gains, result["workload"]["prompts"]), style="bold"), end="\n\n")
    found = drafters(told["drafters"])
    console.print(_shown(found, f"Speed, rule: {rules(told['drafters'])}", _SPEED))
    console.print(_shown(found, "Quality and cost", _QUALITY))
    console.print(_shown(correlations(told["correlations"]), "Rank correlations"))
    for line in notes(told):
        console.print(Text(line, style="dim"))


def drafters(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """One line per drafter."""
    return Cells.of(_COLUMNS, rows)


def correlations(found: Sequence[Mapping[str, Any]]) -> Cells:
    """One line per measure that the speedup is correlated with."""
    return Cells.of(_CORRELATIONS, found)


def _shown(cells: Cells, title: str, columns: Sequence[str] | None = None) -> Table:
    """The first column and the named ones, or all."""
    kept = [place for place, heading in enumerate(cells.headings) if not place or not columns or heading in columns]
    table = narrow_table(title, [cells.headings[place] for place in kept])
    for line in cells.lines:
        table.add_row(*(line[place] for place in kept))
    return table


def notes(told: Mapping[str, Any]) -> list[str]:
    """Why figures are missing, how many tokens they are over, and whether there are few drafters."""
    silent: dict[str, list[str]] = {}
    partly: dict[str, list[str]] = {}
    for row in told["drafters"]:
        judged, tokens, reason = (row["quality"][key] for key in ("judged", "tokens", "reason"))
        if reason is not None:
            silent.setdefault(reason, []).append(short(row["name"]))
        elif judged < tokens:
            partly.setdefault(f"{judged} of {tokens}", []).append(short(row["name"]))
    lines = [f"no perplexity, {reason}: {', '.join(names)}" for reason, names in silent.items()]
    lines += [
        f"perplexity over {counts} tokens, those with a probability (the draft vocabulary lacks the others, or "
        f"nothing was drafted): {', '.join(names)}"
        for counts, names in partly.items()
    ]
    count = len(told["drafters"])
    if count < FEW:
        lines.append(f"few drafters ({count}): read the correlations as a hint, and p before ρ")
    return lines
