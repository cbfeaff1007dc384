"""Rank correlations, ties included, and how often chance alone would give one as strong.

Sources: Spearman 1904; Kendall 1945 (τ-b).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from typing import Final

import numpy as np

FEWEST: Final = 3
"""Pairs below which no correlation is told: two points always agree or disagree perfectly."""
_EXACT: Final = 7
"""Up to so many pairs every order is tried; more are drawn from."""
_DRAWS: Final = 4000
_ROUNDING: Final = 1e-12

Correlation = Callable[[Sequence[float], Sequence[float]], "float | None"]


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, least first, from 1; equal ones share the mean of theirs."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    return [first[value] + (order.count(value) + 1) / 2 for value in values]


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's ρ, Pearson's correlation of the ranks; None with fewer than three pairs or all of one rank."""
    if len(x) < FEWEST:
        return None
    a, b = (np.array(ranks(values)) - (len(values) + 1) / 2 for values in (x, y))
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / spread if spread else None


def kendall(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Kendall's τ-b: pairs in the same order less those in the other, over those not tied in x times those not in y.

    Returns:
        From −1 to 1; None with fewer than three pairs or all of one rank.
    """
    if len(x) < FEWEST:
        return None
    signs = [(_sign(x[i] - x[j]), _sign(y[i] - y[j])) for i, j in combinations(range(len(x)), 2)]
    untied = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    return sum(a * b for a, b in signs) / untied if untied else None


def chance(correlation: Correlation, x: Sequence[float], y: Sequence[float]) -> float | None:
    """How often a random order of y correlates at least as strongly with x, either way: the two-sided p-value.

    Every order is tried up to seven pairs, and drawn by fixed dice for more.
    """
    found = correlation(x, y)
    if found is None:
        return None
    strong = abs(found) - _ROUNDING
    if len(x) <= _EXACT:
        hits = [abs(correlation(x, order) or 0.0) >= strong for order in permutations(y)]
        return sum(hits) / len(hits)
    dice = np.random.default_rng(0)
    drawn = [correlation(x, dice.permutation(y).tolist()) for _ in range(_DRAWS)]
    return (1 + sum(abs(each or 0.0) >= strong for each in drawn)) / (1 + _DRAWS)


def _sign(difference: float) -> int:
    return (difference > 0) - (difference < 0)
