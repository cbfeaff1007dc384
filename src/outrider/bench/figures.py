"""How a bench's figures are written, in a terminal and on a page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.verify.base import rule_label


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """A ratio."""
    return "–" if value is None else f"{value:.2f}×"


def interval(ends: Sequence[float] | None) -> str:
    """An interval of ratios."""
    return "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"


def share(value: float | None) -> str:
    """A part of a whole."""
    return "–" if value is None else f"{value:.1%}"


def rate(value: float | None, tested: int) -> str:
    """An acceptance rate with the number of drafts it was taken over."""
    return f"{value:.2f} ({tested})" if value is not None and tested else "–"


def rules(rows: Sequence[Mapping[str, Any]]) -> str:
    """The acceptance rules of some rows; one that is lossy says so."""
    return ", ".join(dict.fromkeys(rule_label(row["verifier"], lossless=row["lossless"]) for row in rows))


def automatic(result: Mapping[str, Any]) -> list[str]:
    """Which of a bench's methods ``auto`` stands for; empty where it was not run."""
    # Results of earlier versions do not tell.
    return [f"auto is {arm['name']} here" for arm in result["algorithms"] if arm.get("automatic")]


def identical(entry: Mapping[str, Any]) -> str:
    """How many texts are plain decoding's."""
    if not entry["lossless"]:
        return "lossy"
    facts = entry["identical"]
    if not facts["promised"]:
        return "in law"
    ties = f" +{facts['within_tie_rule']} ties" if facts["within_tie_rule"] else ""
    return f"{facts['same']}/{facts['texts']}{ties}"
