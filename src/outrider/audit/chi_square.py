"""Pearson's chi-square test of counted outcomes against exact probabilities."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch

FEWEST: Final = 25.0
"""Expected counts below this are pooled: so far out in its tail the chi-square law is not to be trusted otherwise."""


class Fit(NamedTuple):
    """How well counts fit a law."""

    statistic: float
    degrees: int
    p_value: float
    """Odds that counts from this law fit as badly; 0 where something impossible was counted."""
    impossible: int
    """Counts in cells of probability 0."""


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> Fit:
    """Test counts against a law.

    Args:
        counts: [cells], how often each outcome was seen.
        law: [cells], its probability; adds up to 1.
    """
    seen, law = counts.double(), law.double()
    impossible = int(seen[law == 0.0].sum())
    if impossible:
        return Fit(float("inf"), 0, 0.0, impossible)
    law, order = torch.sort(law)
    seen, expected = seen[order], law * seen.sum()
    rare = int((expected < FEWEST).sum())
    if rare:  # pool them, and as many more as make the pool large enough
        enough = int(torch.searchsorted(torch.cumsum(expected, 0), FEWEST)) + 1
        rare = min(len(expected), max(rare, enough))
        seen = torch.cat((seen[rare:], seen[:rare].sum().view(1)))
        expected = torch.cat((expected[rare:], expected[:rare].sum().view(1)))
    statistic, degrees = float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1
    return Fit(statistic, degrees, tail(statistic, degrees), 0)


def tail(statistic: float, degrees: int) -> float:
    """Odds that a chi-square variable of some degrees of freedom exceeds a value."""
    if degrees == 0:
        return 1.0
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def needed(fit: Fit, samples: int, alarm: float) -> int:
    """Samples of a law that is seen to be wrong with odds of about 99 %, told from fewer in which it was not.

    What is wrong with a law raises the statistic in proportion to the samples.  Less than one standard deviation is
    taken for one, since no more is known then.

    Returns:
        A round number, at least a quarter above the samples there were.
    """
    degrees = max(1, fit.degrees)
    excess = max(fit.statistic - degrees, (2.0 * degrees) ** 0.5)
    low, high = 1.25, 1e6
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _seen(degrees, excess * middle, alarm) else (middle, high)
    step: int = 10 ** max(0, len(str(int(samples * high))) - 2)
    return math.ceil(samples * high / step) * step


def _seen(degrees: int, shift: float, alarm: float) -> bool:
    """Whether a shift of the statistic is almost certain to be noticed; see :func:`detectable` for how that is told."""
    mean, deviation = degrees + shift, (2.0 * (degrees + 2.0 * shift)) ** 0.5
    return tail(max(0.0, mean - 2.33 * deviation), degrees) < alarm


def detectable(samples: int, degrees: int, alarm: float) -> float:
    """Total variation of a wrong law that is caught with odds of about 99 %.

    A law at total variation d raises the statistic by at least ``4·d²·samples`` on average (Cauchy–Schwarz); the
    normal approximation of the noncentral law is good enough for a figure in a report.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _seen(degrees, 4.0 * middle**2 * samples, alarm) else (middle, high)
    return high
