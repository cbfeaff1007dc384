"""Rank correlations with ties, and their p-values.

Sources: Spearman 1904; Kendall 1945 (τ-b).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from typing import Final

import numpy as np

FEWEST: Final = 3
"""Fewest pairs for a correlation: two points always correlate perfectly."""
_EXACT: Final = 7
"""Most pairs for which all orders are tried; with more, orders are drawn."""
_DRAWS: Final = 4000
_ROUNDING: Final = 1e-12

Correlation = Callable[[Sequence[float], Sequence[float]], "float | None"]


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1 for the least; equal values get the mean of their ranks."""
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    return [first[value] + (order.count(value) + 1) / 2 for value in values]


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's ρ: Pearson's correlation of the ranks; None with fewer than three pairs or only one rank."""
    if len(x) < FEWEST:
        return None
    a, b = (np.array(ranks(values)) - (len(values) + 1) / 2 for values in (x, y))
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / spread if spread else None


def kendall(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Kendall's τ-b: (concordant − discordant) ÷ √(pairs untied in x · pairs untied in y).

    Returns:
        From −1 to 1; None with fewer than three pairs or only one rank.
    """
    if len(x) < FEWEST:
        return None
    signs = [(_sign(x[i] - x[j]), _sign(y[i] - y[j])) for i, j in combinations(range(len(x)), 2)]
    untied = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    return sum(a * b for a, b in signs) / untied if untied else None


def chance(correlation: Correlation, x: Sequence[float], y: Sequence[float]) -> float | None:
    """The two-sided p-value: how often a random order of y correlates at least as strongly with x.

    Up to seven pairs all orders are tried; with more, orders are drawn with a fixed seed.
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
