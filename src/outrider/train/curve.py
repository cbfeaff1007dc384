"""The curve of held-out accepted length over tokens trained on, and where it points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

LEAST_POINTS: Final = 4
"""A curve of three numbers goes through any three points."""
_POWERS: Final = np.geomspace(0.02, 3.0, 400)


@dataclass(frozen=True)
class Fit:
    """τ(n) = limit − scale · n^−power."""

    limit: float
    scale: float
    power: float
    error: float
    """Root mean square of what is left at the points."""
    tokens: float
    """Most tokens of a point."""

    def at(self, tokens: float) -> float:
        """τ after so many tokens."""
        return self.limit - self.scale * math.pow(tokens, -self.power)

    @property
    def bends(self) -> bool:
        """Whether the curve has begun to flatten; before that, a limit cannot be told from these points."""
        return self.power > 2 * float(_POWERS[0])

    def __str__(self) -> str:
        """One line to print."""
        told = "" if self.bends else "; it has not bent yet, so the limit means nothing"
        return (
            f"τ(n) ≈ {self.limit:.3f} − {self.scale:.3g}·n^−{self.power:.3f} (rms {self.error:.3f}): "
            f"{self.at(2 * self.tokens):.2f} at twice the tokens, {self.at(10 * self.tokens):.2f} at ten times{told}"
        )


def fit(points: Sequence[tuple[int, float]], most: float = math.inf) -> Fit | None:
    """The saturating power law nearest to points in squares.

    Args:
        points: (tokens, τ); those at no tokens are left out, as the law has no value there.
        most: the longest accepted length the head could reach.

    Returns:
        The law, or None for fewer than four points or where none that stays below ``most`` rises.
    """
    n, tau = np.array([point for point in points if point[0] > 0], dtype=np.float64).reshape(-1, 2).T
    if len(n) < LEAST_POINTS:
        return None
    found: Fit | None = None
    for power in _POWERS:
        columns = np.stack([np.ones_like(n), -((n / n.max()) ** -power)], 1)
        (limit, scale), *_ = np.linalg.lstsq(columns, tau, rcond=None)
        error = float(np.sqrt(np.mean((columns @ (limit, scale) - tau) ** 2)))
        if scale > 0 and limit <= most and (found is None or error < found.error):
            found = Fit(float(limit), float(scale * n.max() ** power), float(power), error, float(n.max()))
    return found
