"""The result of a bench as tables, each at most eighty columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from outrider.bench.figures import (
    IDENTICAL,
    INTERVAL,
    LENGTH,
    METHOD,
    RATE,
    SPEED,
    SPEEDUP,
    Column,
    automatic,
    number,
    rules,
    share,
    times,
)
from outrider.bench.report import ALL
from outrider.bench.verdict import verdicts

Entry = Mapping[str, Any]
_POSITIONS: Final = 6
"""Positions whose acceptance rate is shown."""


def tables(result: Mapping[str, Any]) -> Group:
    """The verdict, then tables of speed, acceptance, costs and categories, then notes."""
    entries: Sequence[Entry] = result["results"]
    overall = [entry for entry in entries if entry["category"] == ALL]
    parts: list[Any] = [*(Text(line, style="bold") for line in verdicts(entries)), Text()]
    parts.append(_table(f"Speed, rule: {rules(overall)}", (*SPEED, IDENTICAL), overall))
    parts += [_table(title, columns, overall) for title, columns in _OTHERS.items()]
    if len({entry["category"] for entry in entries}) > 2:
        drafting = [entry for entry in entries if entry["category"] != ALL and entry["drafted"]]
        parts.append(_table("By category", _CATEGORIES, drafting, names=2))
    return Group(*parts, *_notes(result, overall))


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the tables."""
    console.print(tables(result))


def narrow_table(title: str, headings: Sequence[str], names: int = 1) -> Table:
    """An empty table that never cuts a figure; if it is too wide, names wrap.

    Args:
        title: above it.
        headings: of the columns.
        names: columns of text, which come first.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings[:names]:
        table.add_column(heading, overflow="fold")
    for heading in headings[names:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _table(title: str, columns: Sequence[Column], entries: Iterable[Entry], names: int = 1) -> Table:
    """A table with a line for each entry; several settings get a heading each."""
    table = narrow_table(title, [heading for heading, _ in columns], names)
    groups = [(setting, list(group)) for setting, group in groupby(entries, lambda entry: entry["setting"])]
    for setting, group in groups:
        if len(groups) > 1:
            table.add_section()
            table.add_row(Text(setting, style="bold"))
        for entry in group:
            table.add_row(*(cell(entry) for _, cell in columns))
    return table


def _milliseconds(phase: str) -> Column:
    def cell(entry: Entry) -> str:
        spent = entry["per_round"][f"{phase}_s"]
        return number(None if spent is None else 1000 * spent)

    return phase, cell


def _by_position(entry: Entry) -> str:
    return " ".join(number(each) for each in entry["acceptance_by_position"][:_POSITIONS]) or "–"


_OTHERS: Final[Mapping[str, Sequence[Column]]] = {
    "Acceptance": (METHOD, LENGTH, RATE, ("α by position", _by_position)),
    "Time of a round, ms": (
        METHOD,
        ("rounds", lambda entry: str(entry["rounds"])),
        *map(_milliseconds, ("draft", "verify", "other")),
        ("share of other", lambda entry: share(entry["other_share"])),
    ),
    "Speedup that acceptance and costs predict": (
        METHOD,
        ("c", lambda entry: number(entry["cost_coefficient"], 3)),
        ("verify cost", lambda entry: times(entry["verify_cost"])),
        ("predicted", lambda entry: times(entry["predicted_speedup"])),
        ("with verify cost", lambda entry: times(entry["predicted_with_verify_cost"])),
        ("measured", SPEEDUP[1]),
    ),
}
"""The tables below the first, by title."""
_CATEGORIES: Final[Sequence[Column]] = (
    ("category", itemgetter("category")),
    METHOD,
    ("prompts", lambda entry: str(entry["prompts"])),
    SPEEDUP,
    INTERVAL,
    LENGTH,
    RATE,
)


def _notes(result: Mapping[str, Any], entries: Sequence[Entry]) -> list[Text]:
    ceiling, lines = result["ceiling"], []
    if ceiling["share_reached"] is not None:
        lines.append(
            f"memory bandwidth {ceiling['read_bytes_per_s'] / 1e9:.1f} GB/s allows plain decoding "
            f"{ceiling['tokens_per_s']:.1f} tokens/s; {ceiling['share_reached']:.0%} of that was reached"
        )
    lines += automatic(result)
    for entry in entries:
        lines += [
            f"{entry['algorithm']}, {entry['setting']}: {item['prompt_id']} differs from token {item['position']} on; "
            f"the two best scores there are {number(item['best_two_gap'], 6)} apart, the worst gap of the text is "
            f"{number(item['worst_gap'], 6)}: {'a tie' if item['within_tie_rule'] else 'NOT a tie'}"
            for item in entry["identical"]["differences"]
        ]
    return [Text(line, style="dim") for line in lines]
