"""How the figures of a bench are formatted, in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from outrider.verify.base import rule_label

Column = tuple[str, Callable[[Mapping[str, Any]], str]]
"""A column of a table: its heading, and the cell of an entry."""


def number(value: float | None, digits: int = 2) -> str:
    """A number; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """A ratio."""
    return "–" if value is None else f"{value:.2f}×"


def interval(ends: Sequence[float] | None) -> str:
    """An interval of ratios."""
    return "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"


def share(value: float | None) -> str:
    """A share of a whole."""
    return "–" if value is None else f"{value:.1%}"


def rate(value: float | None, tested: int) -> str:
    """An acceptance rate with its number of tested drafts."""
    return f"{value:.2f} ({tested})" if value is not None and tested else "–"


def rules(rows: Sequence[Mapping[str, Any]]) -> str:
    """The acceptance rules of some rows; lossy ones are marked."""
    return ", ".join(dict.fromkeys(rule_label(row["verifier"], lossless=row["lossless"]) for row in rows))


def automatic(result: Mapping[str, Any]) -> list[str]:
    """Which of a bench's methods is ``auto``; empty if it was not run or the result is of an earlier version."""
    return [f"auto is {arm['name']} here" for arm in result["algorithms"] if arm.get("automatic")]


def identical(entry: Mapping[str, Any]) -> str:
    """How many texts equal plain decoding's."""
    if not entry["lossless"]:
        return "lossy"
    facts = entry["identical"]
    if not facts["promised"]:
        return "in law"
    ties = f" +{facts['within_tie_rule']} ties" if facts["within_tie_rule"] else ""
    return f"{facts['same']}/{facts['texts']}{ties}"


METHOD: Final[Column] = ("method", itemgetter("algorithm"))
TOKENS_PER_S: Final[Column] = ("tokens/s", lambda entry: number(entry["tokens_per_s"], 1))
SPEEDUP: Final[Column] = ("speedup", lambda entry: times(entry["speedup"]))
INTERVAL: Final[Column] = ("95 %", lambda entry: interval(entry["speedup_interval"]))
END_TO_END: Final[Column] = ("end to end", lambda entry: times(entry["end_to_end_speedup"]))
LENGTH: Final[Column] = ("τ", lambda entry: number(entry["mean_accepted_length"]))
RATE: Final[Column] = ("α (tested)", lambda entry: rate(entry["acceptance_rate"], entry["tested"]))
IDENTICAL: Final[Column] = ("identical", identical)
"""Columns that tables share."""
SPEED: Final = (METHOD, TOKENS_PER_S, SPEEDUP, INTERVAL, END_TO_END)
