"""The result as tables a person can read; each fits into eighty columns, whatever the terminal's width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from outrider.bench.figures import automatic, identical, interval, number, rate, rules, share, times
from outrider.bench.report import ALL
from outrider.bench.verdict import verdicts

Entry = Mapping[str, Any]
_POSITIONS: Final = 6
"""Depths whose acceptance is shown."""


def tables(result: Mapping[str, Any]) -> Group:
    """The verdict, overall numbers, costs, categories, and the ceiling."""
    entries: Sequence[Entry] = result["results"]
    overall = [entry for entry in entries if entry["category"] == ALL]
    parts: list[Any] = [*(Text(line, style="bold") for line in verdicts(entries)), Text()]
    parts += [_speed(overall), _acceptance(overall), _rounds(overall), _predictions(overall)]
    if len({entry["category"] for entry in entries}) > 2:
        parts.append(_categories([entry for entry in entries if entry["category"] != ALL and entry["drafted"]]))
    return Group(*parts, *_notes(result, overall))


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the tables."""
    console.print(tables(result))


def narrow_table(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    """An empty table that shows every figure whole: where it would be too wide, names go on in the next line.

    Args:
        title: above it.
        names: headings of the columns of text, which come first.
        figures: headings of the columns of figures.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in names:
        table.add_column(heading, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _filled(table: Table, entries: Iterable[Entry], cells: Callable[[Entry], Sequence[str]]) -> Table:
    """A line for each entry, under the setting's name where there are several."""
    groups = [(setting, list(group)) for setting, group in groupby(entries, lambda entry: entry["setting"])]
    for setting, group in groups:
        if len(groups) > 1:
            table.add_section()
            table.add_row(Text(setting, style="bold"))
        for entry in group:
            table.add_row(*cells(entry))
    return table


def _speed(entries: Sequence[Entry]) -> Table:
    headings = ("tokens/s", "speedup", "95 %", "end to end", "identical")
    return _filled(
        narrow_table(f"Speed, rule: {rules(entries)}", ("method",), headings),
        entries,
        lambda entry: (
            entry["algorithm"],
            number(entry["tokens_per_s"], 1),
            times(entry["speedup"]),
            interval(entry["speedup_interval"]),
            times(entry["end_to_end_speedup"]),
            identical(entry),
        ),
    )


def _acceptance(entries: Sequence[Entry]) -> Table:
    return _filled(
        narrow_table("Acceptance", ("method",), ("τ", "α (tested)", "α by position")),
        entries,
        lambda entry: (
            entry["algorithm"],
            number(entry["mean_accepted_length"]),
            rate(entry["acceptance_rate"], entry["tested"]),
            " ".join(number(each) for each in entry["acceptance_by_position"][:_POSITIONS]) or "–",
        ),
    )


def _rounds(entries: Sequence[Entry]) -> Table:
    return _filled(
        narrow_table("Time of a round, ms", ("method",), ("rounds", "draft", "verify", "other", "share of other")),
        entries,
        lambda entry: (
            entry["algorithm"],
            str(entry["rounds"]),
            *(number(None if spent is None else 1000 * spent) for spent in entry["per_round"].values()),
            share(entry["other_share"]),
        ),
    )


def _predictions(entries: Sequence[Entry]) -> Table:
    headings = ("c", "verify cost", "predicted", "with verify cost", "measured")
    return _filled(
        narrow_table("Speedup that acceptance and costs predict", ("method",), headings),
        entries,
        lambda entry: (
            entry["algorithm"],
            number(entry["cost_coefficient"], 3),
            times(entry["verify_cost"]),
            times(entry["predicted_speedup"]),
            times(entry["predicted_with_verify_cost"]),
            times(entry["speedup"]),
        ),
    )


def _categories(entries: Sequence[Entry]) -> Table:
    return _filled(
        narrow_table("By category", ("category", "method"), ("prompts", "speedup", "95 %", "τ", "α (tested)")),
        entries,
        lambda entry: (
            entry["category"],
            entry["algorithm"],
            str(entry["prompts"]),
            times(entry["speedup"]),
            interval(entry["speedup_interval"]),
            number(entry["mean_accepted_length"]),
            rate(entry["acceptance_rate"], entry["tested"]),
        ),
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
