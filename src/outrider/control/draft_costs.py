"""What drafting costs: so much for each request that drafts, and so much for each step, which all requests share."""

from __future__ import annotations

from typing import Final

import numpy as np

_MEMORY: Final = 0.97
"""What a round counts after another one."""
_RIDGE: Final = 1e-3
"""Keeps both costs small where the rounds cannot tell them apart."""


class DraftCosts:
    """Seconds of drafting with one method, fitted to its rounds."""

    def __init__(self) -> None:
        self._products, self._seconds = np.zeros((2, 2)), np.zeros(2)
        self.request = 0.0
        """Seconds for each request that drafts."""
        self.step = 0.0
        """Seconds for each level of the deepest tree."""

    def observe(self, requests: int, levels: int, seconds: float) -> None:
        """Learn from a round.

        Args:
            requests: how many drafted.
            levels: depth of the deepest tree.
            seconds: all of it.
        """
        counts = np.array([requests, levels], dtype=np.float64)
        self._products = _MEMORY * self._products + np.outer(counts, counts)
        self._seconds = _MEMORY * self._seconds + counts * seconds
        both = np.linalg.solve(self._products + _RIDGE * np.trace(self._products) * np.eye(2), self._seconds)
        if both.min() < 0:  # the better of the two alone
            alone = [self._seconds[n] / self._products[n, n] if self._products[n, n] else 0.0 for n in (0, 1)]
            best = int(self._seconds[1] * alone[1] > self._seconds[0] * alone[0])
            both = np.array([alone[0], 0.0] if best == 0 else [0.0, alone[1]])
        self.request, self.step = map(float, both)

    def seconds(self, requests: int, levels: int) -> float:
        """Seconds of a round."""
        return requests * self.request + levels * self.step
