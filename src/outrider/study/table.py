"""A study as tables a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.bench.figures import interval, number, rate, rules, times
from outrider.bench.table import narrow_table
from outrider.bench.verdict import gain_of, verdict

FEW: Final = 10
"""Drafters below which a rank correlation is a hint at most."""


_SPEED: Final = ("τ", "speedup", "95 %", "median")
_QUALITY: Final = ("perplexity", "α", "ms/draft", "ms/round")
"""Columns of the two tables in which a terminal shows the drafters."""


class Cells(NamedTuple):
    """A table, whatever it is printed as."""

    headings: Sequence[str]
    """Of each column; the first is of text, the others of figures."""
    lines: Sequence[Sequence[str]]


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, the drafters, what their speedups go with, and how much that means."""
    told = result["study"]
    gains = [gain_of(short(row["name"]), row) for row in told["drafters"]]
    console.print(Text(verdict(gains, result["workload"]["prompts"]), style="bold"), end="\n\n")
    found = drafters(told["drafters"])
    console.print(_shown(found, _SPEED, f"Speed, rule: {rules(told['drafters'])}"))
    console.print(_shown(found, _QUALITY, "Quality and cost"))
    correlated = correlations(told["correlations"])
    console.print(_shown(correlated, correlated.headings[1:], "Rank correlations"))
    for line in notes(told):
        console.print(Text(line, style="dim"))


def short(name: str) -> str:
    """A drafter's name without the colons, and without a path that only repeats the method."""
    method, *rest = name.split(":")
    return " ".join([method, *(part for part in rest if part != method)])


def drafters(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """One line per drafter."""
    headings = ("drafter", "perplexity", "α", "τ", "ms/draft", "ms/round", "speedup", "95 %", "median")
    keys = ("mean_accepted_length", "draft_ms_per_token", "draft_ms_per_round")
    return Cells(
        headings,
        [
            (
                short(row["name"]),
                number(row["perplexity"]),
                # Studies of earlier versions kept no count.
                rate(row["acceptance_rate"], row["tested"]) if "tested" in row else number(row["acceptance_rate"]),
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


def _shown(cells: Cells, columns: Sequence[str], title: str) -> Table:
    """The first column and those of the others that are named."""
    kept = [place for place, heading in enumerate(cells.headings) if heading in columns]
    table = narrow_table(title, cells.headings[:1], [cells.headings[place] for place in kept])
    for line in cells.lines:
        table.add_row(line[0], *(line[place] for place in kept))
    return table


def notes(told: Mapping[str, Any]) -> list[str]:
    """What a reader must know of the figures: why some are missing, over what others were taken, how few they are."""
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
        f"perplexity over {counts} tokens, those given a probability (the others are lacking, or nothing was drafted "
        f"there): {', '.join(names)}"
        for counts, names in partly.items()
    ]
    count = len(told["drafters"])
    if count < FEW:
        lines.append(f"few drafters ({count}): read the correlations as a hint, and p before ρ")
    return lines
