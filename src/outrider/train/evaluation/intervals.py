"""95 % confidence intervals over held-out texts: of τ, of α, and of the change between two evaluations.

The bootstrap resamples texts with their counts; two evaluations are compared on the same resamples.  Few texts vary
less than their population, so percentiles are expanded: Hesterberg 2015, "What Teachers Should Know About the
Bootstrap", §4.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

LEVEL: Final = 0.95
LEAST_TEXTS: Final = 4
"""Fewest texts for an interval."""
_RESAMPLES: Final = 2000


@dataclass(frozen=True)
class Interval:
    """A figure with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The ends."""
        return f"{self.low:.2f} to {self.high:.2f}"

    @property
    def as_change(self) -> str:
        """A difference with its sign, and its ends."""
        return f"{self.value:+.3f} (95 %: {self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True, eq=False)
class Counts:
    """Accepted and tested guesses of each held-out text and depth."""

    accepted: np.ndarray
    """[texts, depths]"""
    tested: np.ndarray
    """[texts, depths]"""

    @classmethod
    def of(cls, accepted: Sequence[Sequence[int]], tested: Sequence[Sequence[int]]) -> Counts:
        """Counts from lists [texts][depths]."""
        return cls(np.array(accepted, dtype=np.float64), np.array(tested, dtype=np.float64))

    @property
    def enough(self) -> bool:
        """Whether there are enough texts for an interval."""
        return len(self.accepted) >= LEAST_TEXTS

    def rates(self, weights: np.ndarray) -> np.ndarray:
        """α by depth for weights of texts [..., texts]: [..., depths]."""
        return weights @ self.accepted / np.maximum(weights @ self.tested, 1)

    def lengths(self, weights: np.ndarray) -> np.ndarray:
        """τ for weights of texts [..., texts]: [...]."""
        lengths: np.ndarray = 1.0 + np.cumprod(self.rates(weights), -1).sum(-1)
        return lengths


def length_interval(counts: Counts) -> Interval | None:
    """τ with its interval; None with fewer than four texts."""
    if not counts.enough:
        return None
    return interval_of(
        float(counts.lengths(_every(counts))), counts.lengths(resamples(len(counts.accepted))), len(counts.accepted)
    )


def rate_intervals(counts: Counts) -> list[Interval] | None:
    """α of each depth with its interval; None with fewer than four texts."""
    if not counts.enough:
        return None
    values, drawn = counts.rates(_every(counts)), counts.rates(resamples(len(counts.accepted)))
    return [interval_of(value, column, len(counts.accepted)) for value, column in zip(values, drawn.T, strict=True)]


def gain(before: Counts, after: Counts) -> Interval | None:
    """The change of τ between two evaluations; None with fewer than four texts, or if the texts differ."""
    if not before.enough or len(before.accepted) != len(after.accepted):
        return None
    every, drawn = _every(before), resamples(len(before.accepted))
    return interval_of(
        float(after.lengths(every) - before.lengths(every)),
        after.lengths(drawn) - before.lengths(drawn),
        len(before.accepted),
    )


def interval_of(value: float, drawn: np.ndarray, texts: int) -> Interval:
    """The interval of a figure from its values on resamples of ``texts`` texts."""
    outside = _outside(texts)
    low, high = np.quantile(drawn, [outside, 1.0 - outside])
    return Interval(float(value), float(low), float(high))


@lru_cache(maxsize=4)
def resamples(texts: int) -> np.ndarray:
    """Counts of each text in each bootstrap resample, the same in every call: [resamples, texts]."""
    dice = np.random.default_rng(0)
    return dice.multinomial(texts, np.full(texts, 1.0 / texts), _RESAMPLES).astype(np.float64)


def _every(counts: Counts) -> np.ndarray:
    return np.ones(len(counts.accepted))


def _outside(texts: int) -> float:
    """The share of resamples beyond each end."""
    return NormalDist().cdf(-math.sqrt(texts / (texts - 1)) * student_t((1.0 + LEVEL) / 2, texts - 1))


def student_t(chance: float, freedom: int) -> float:
    """A quantile of Student's t with at least three degrees of freedom (Abramowitz and Stegun 1964, 26.7.5)."""
    z = NormalDist().inv_cdf(chance)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
