"""Pearson's chi-square test of counted outcomes against exact probabilities."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch

FEWEST: Final = 25.0
"""Expected counts below this are pooled: with fewer, the chi-square distribution is wrong this far out in its tail."""


class Fit(NamedTuple):
    """How well counts fit a distribution."""

    statistic: float
    degrees: int
    p_value: float
    """Probability that counts from this distribution fit as badly; 0 if an impossible outcome was counted."""
    impossible: int
    """Counts in cells of probability 0."""


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> Fit:
    """Test counts against a distribution.

    Args:
        counts: [cells], the count of each outcome.
        law: [cells], their probabilities; they add up to 1.
    """
    seen, law = counts.double(), law.double()
    impossible = int(seen[law == 0.0].sum())
    if impossible:
        return Fit(float("inf"), 0, 0.0, impossible)
    law, order = torch.sort(law)
    seen, expected = seen[order], law * seen.sum()
    rare = int((expected < FEWEST).sum())
    if rare:  # pool them, with others if the pool is too small
        enough = int(torch.searchsorted(torch.cumsum(expected, 0), FEWEST)) + 1
        rare = min(len(expected), max(rare, enough))
        seen = torch.cat((seen[rare:], seen[:rare].sum().view(1)))
        expected = torch.cat((expected[rare:], expected[:rare].sum().view(1)))
    statistic, degrees = float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1
    return Fit(statistic, degrees, tail(statistic, degrees), 0)


def tail(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable exceeds a value."""
    if degrees == 0:
        return 1.0
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def needed(fit: Fit, samples: int, alarm: float) -> int:
    """Estimate the samples that show with about 99 % probability that a distribution is wrong, if fewer did not.

    An error raises the statistic in proportion to the samples.  An excess below one standard deviation counts as one.

    Returns:
        A round number, at least a quarter above ``samples``.
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
    """Whether a test almost certainly notices a shift of the statistic, by the approximation of :func:`detectable`."""
    mean, deviation = degrees + shift, (2.0 * (degrees + 2.0 * shift)) ** 0.5
    return tail(max(0.0, mean - 2.33 * deviation), degrees) < alarm


def detectable(samples: int, degrees: int, alarm: float) -> float:
    """The total variation that a test notices with about 99 % probability.

    A distribution at total variation d raises the statistic by at least ``4·d²·samples`` on average (Cauchy–Schwarz).
    The noncentral distribution is approximated by a normal one.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _seen(degrees, 4.0 * middle**2 * samples, alarm) else (middle, high)
    return high
