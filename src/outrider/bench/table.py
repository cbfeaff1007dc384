"""The result as tables a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from outrider.bench.report import ALL
from outrider.verify.base import rule_label


def tables(result: Mapping[str, Any]) -> Group:
    """Overall numbers, costs, categories, and the ceiling."""
    entries: Sequence[Mapping[str, Any]] = result["results"]
    overall = [entry for entry in entries if entry["category"] == ALL]
    parts: list[Any] = [_speed(overall), _costs(overall)]
    if len({entry["category"] for entry in entries}) > 2:
        parts.append(_categories([entry for entry in entries if entry["category"] != ALL]))
    return Group(*parts, *_notes(result, overall))


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print the tables."""
    console.print(tables(result))


def _speed(entries: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=f"Speed and acceptance, rule: {rules(entries)}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("setting", "method"):
        table.add_column(heading)
    for heading in ("tokens/s", "speedup", "95 %", "end to end", "α", "by position", "τ", "identical"):
        table.add_column(heading, justify="right")
    for entry in entries:
        table.add_row(
            entry["setting"],
            entry["algorithm"],
            number(entry["tokens_per_s"], 1),
            times(entry["speedup"]),
            interval(entry["speedup_interval"]),
            times(entry["end_to_end_speedup"]),
            number(entry["acceptance_rate"]) if entry["tested"] else "–",
            " ".join(number(rate) for rate in entry["acceptance_by_position"][:4]) or "–",
            number(entry["mean_accepted_length"]),
            identical(entry),
        )
    return table


def _costs(entries: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Where a round's time goes, and what that predicts", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("setting", "method"):
        table.add_column(heading)
    headings = ("rounds", "draft ms", "verify ms", "other ms", "other", "c", "verify cost", "predicted", "with verify")
    for heading in (*headings, "measured"):
        table.add_column(heading, justify="right")
    for entry in entries:
        split = entry["per_round"]
        table.add_row(
            entry["setting"],
            entry["algorithm"],
            str(entry["rounds"]),
            *(number(1000 * split[part] if split[part] is not None else None) for part in split),
            "–" if entry["other_share"] is None else f"{entry['other_share']:.1%}",
            number(entry["cost_coefficient"], 3),
            times(entry["verify_cost"]),
            times(entry["predicted_speedup"]),
            times(entry["predicted_with_verify_cost"]),
            times(entry["speedup"]),
        )
    return table


def _categories(entries: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="By category", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("setting", "category", "method"):
        table.add_column(heading)
    for heading in ("prompts", "speedup", "95 %", "α", "τ"):
        table.add_column(heading, justify="right")
    for entry in entries:
        if entry["drafted"]:
            table.add_row(
                entry["setting"],
                entry["category"],
                entry["algorithm"],
                str(entry["prompts"]),
                times(entry["speedup"]),
                interval(entry["speedup_interval"]),
                number(entry["acceptance_rate"]),
                number(entry["mean_accepted_length"]),
            )
    return table


def _notes(result: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[Text]:
    ceiling, lines = result["ceiling"], []
    if ceiling["share_reached"] is not None:
        lines.append(
            f"memory bandwidth {ceiling['read_bytes_per_s'] / 1e9:.1f} GB/s allows plain decoding "
            f"{ceiling['tokens_per_s']:.1f} tokens/s; {ceiling['share_reached']:.0%} of that was reached"
        )
    for entry in entries:
        lines += [
            f"{entry['algorithm']}, {entry['setting']}: {item['prompt_id']} differs from token {item['position']} on; "
            f"the two best scores there are {number(item['best_two_gap'], 6)} apart, the worst gap of the text is "
            f"{number(item['worst_gap'], 6)}: {'a tie' if item['within_tie_rule'] else 'NOT a tie'}"
            for item in entry["identical"]["differences"]
        ]
    return [Text(line, style="dim") for line in lines]


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """A ratio."""
    return "–" if value is None else f"{value:.2f}×"


def interval(ends: Sequence[float] | None) -> str:
    """An interval of ratios."""
    return "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"


def rules(rows: Sequence[Mapping[str, Any]]) -> str:
    """The acceptance rules of some rows; one that is lossy says so."""
    return ", ".join(dict.fromkeys(rule_label(row["verifier"], lossless=row["lossless"]) for row in rows))


def identical(entry: Mapping[str, Any]) -> str:
    """How many texts are plain decoding's."""
    if not entry["lossless"]:
        return "lossy"
    facts = entry["identical"]
    if not facts["promised"]:
        return "in law"
    ties = f" +{facts['within_tie_rule']} ties" if facts["within_tie_rule"] else ""
    return f"{facts['same']}/{facts['texts']}{ties}"
