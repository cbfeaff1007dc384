"""Pearson's chi-square test of counted outcomes against exact probabilities."""

from __future__ import annotations

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


def detectable(samples: int, degrees: int, alarm: float) -> float:
    """Total variation of a wrong law that is caught with odds of about 99 %.

    A law at total variation d raises the statistic by at least ``4·d²·samples`` on average (Cauchy–Schwarz); the
    normal approximation of the noncentral law is good enough for a figure in a report.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        shift = 4.0 * middle**2 * samples
        mean, deviation = degrees + shift, (2.0 * (degrees + 2.0 * shift)) ** 0.5
        caught = tail(max(0.0, mean - 2.33 * deviation), degrees) < alarm
        low, high = (low, middle) if caught else (middle, high)
    return high
