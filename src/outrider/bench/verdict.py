"""The verdict of a bench: which methods are significantly faster than plain decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from outrider.bench.figures import interval, times
from outrider.bench.report import ALL
from outrider.verify.base import rule_label

FEW: Final = 8
"""Below this many prompts, an interval is only a hint."""
_NAMED: Final = 3
"""Most methods that a verdict names."""


class Gain(NamedTuple):
    """A drafter's speedup over plain decoding."""

    name: str
    speedup: float | None
    interval: Sequence[float] | None

    @property
    def pays(self) -> bool:
        """Whether even the lower end of the interval is a gain."""
        return self.interval is not None and self.interval[0] > 1

    def __str__(self) -> str:
        span = "" if self.interval is None else f" ({interval(self.interval)})"
        return f"{self.name} {times(self.speedup)}{span}"


def verdict(gains: Iterable[Gain], prompts: int) -> str:
    """Name the drafters that pay, best first, or the one that comes nearest.

    Args:
        gains: the drafters' speedups.
        prompts: their number of prompts; a verdict from few says so.
    """
    known = sorted((gain for gain in gains if gain.speedup is not None), key=lambda gain: -(gain.speedup or 0))
    paying = [gain for gain in known if gain.pays]
    if paying:
        more = len(paying) - _NAMED
        named = ", ".join(map(str, paying[:_NAMED])) + (f" and {more} more" if more > 0 else "")
        return f"pays: {named}{_caution(prompts)}"
    if not known:
        return "no method pays: nothing was drafted"
    if all(gain.interval is None for gain in known):
        return f"no method can be told to pay from one prompt; give more ({known[0]} on this one)"
    return f"no method pays; {known[0]} comes nearest{_caution(prompts)}"


def _caution(prompts: int) -> str:
    return f"; few prompts ({prompts}): an interval may be too narrow" if prompts < FEW else ""


def verdicts(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The verdict of a bench's ``results`` over all prompts; several settings get one each, with the setting's name."""
    overall = [entry for entry in entries if entry["category"] == ALL]
    found = {}
    for setting in dict.fromkeys(entry["setting"] for entry in overall):
        here = [entry for entry in overall if entry["setting"] == setting]
        gains = [gain_of(entry["algorithm"], entry) for entry in here if entry["drafted"]]
        found[setting] = verdict(gains, here[0]["prompts"])
    return list(found.values()) if len(found) == 1 else [f"{setting}: {text}" for setting, text in found.items()]


def gain_of(name: str, row: Mapping[str, Any]) -> Gain:
    """The gain of a bench's entry or a study's drafter; a lossy rule is named."""
    rule = "" if row["lossless"] else f" under {rule_label(row['verifier'], lossless=False)}"
    return Gain(name + rule, row["speedup"], row["speedup_interval"])
