"""One chi-square test for every suite that samples: how often it cries wolf, and what it is sure to see.

All chi-square tests of the project together raise a false alarm with odds of at most 1e-6: each has odds of
:data:`ALARM`, and there are at most a hundred.  Seeds are fixed, so these are the odds that the seeds chosen once were
unlucky; a test that passes goes on passing.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

ALARM = 1e-8
FEWEST = 25.0
"""Expected counts below this are pooled: the chi-square law is not to be trusted so far out in its tail otherwise."""


def statistic(counts: np.ndarray, law: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom.

    Args:
        counts: how often each cell was seen, any shape.
        law: each cell's probability, the same shape.

    Raises:
        AssertionError: a cell of probability 0 was seen.
    """
    counts, law = np.asarray(counts, dtype=float).ravel(), np.asarray(law, dtype=float).ravel()
    assert math.isclose(law.sum(), 1.0, abs_tol=1e-9), "the law does not add up to 1"
    assert not counts[law == 0.0].any(), "something impossible was seen"
    order = np.argsort(law)
    seen, expected = counts[order], law[order] * counts.sum()
    rare = int((expected < FEWEST).sum())
    if rare:  # pool them, and as many more as make the pool large enough
        rare = max(rare, int(np.searchsorted(np.cumsum(expected), FEWEST)) + 1)
        seen = np.append(seen[rare:], seen[:rare].sum())
        expected = np.append(expected[rare:], expected[:rare].sum())
    return float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1


def critical(degrees: int) -> float:
    """Statistics above this are alarms."""
    return float(stats.chi2.isf(ALARM, degrees))


def differs(counts: np.ndarray, law: np.ndarray) -> bool:
    """Whether counts could not have come from a law."""
    value, degrees = statistic(counts, law)
    return value > critical(degrees)


def check(counts: np.ndarray, law: np.ndarray, *, variation: float = 0.02) -> None:
    """Assert that counts come from a law, with a test strong enough to mean something.

    Args:
        counts: how often each cell was seen.
        law: each cell's probability.
        variation: a law this far away in total variation must be caught with power 0.99.
    """
    value, degrees = statistic(counts, law)
    samples = int(np.sum(counts))
    assert power(samples, degrees, variation) >= 0.99, f"{samples} samples are too few; {needed(degrees, variation)}"
    assert value <= critical(degrees), f"chi-square {value:.1f} at {degrees} degrees; {critical(degrees):.1f} allowed"


def power(samples: int, degrees: int, variation: float = 0.02) -> float:
    """Chance to catch the law that is hardest to catch among those at this total variation.

    A law at total variation d has ``Σ (Δp)²/p ≥ (Σ |Δp|)² = 4d²`` (Cauchy–Schwarz), reached by raising half of the
    mass and lowering the other half by the same share; the statistic is then noncentral chi-square with that times
    the number of samples.
    """
    return float(stats.ncx2.sf(critical(degrees), degrees, 4.0 * variation**2 * samples))


def needed(degrees: int, variation: float = 0.02, wanted: float = 0.99) -> int:
    """Fewest samples of that power."""
    low, high = 0, 1
    while power(high, degrees, variation) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(middle, degrees, variation) < wanted else (low, middle)
    return high
