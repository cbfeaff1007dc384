"""What a pass costs by its number of rows: a staircase, profiled once and refreshed by every round.

Where rows are free the staircase is flat; where the kernels change it has a step.  Decisions are made on it and not on
a line through it: the eighth row may cost nothing and the ninth half a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

_PRIOR: Final = {1: 1.0, 8: 1.5, 64: 8.0}
"""Relative cost of a pass before anything was measured: most rows up to eight are nearly free, later ones are not."""
_WHOLE: Final = 0.05
"""Share of a new round in the level of all costs, which follows the machine's speed and the texts' lengths."""
_PART: Final = 0.05
"""Share of a new round in the cost of its own number of rows."""
_OUTLIER: Final = 1.0
"""Largest change that one round may ask for, as a logarithm; a round beyond was interrupted."""


class PassCosts:
    """Seconds of a pass by its number of rows.  They never fall as rows are added.

    Args:
        profile: measured seconds by rows; without it the shape is learned from rounds, from a rough guess on.
    """

    def __init__(self, profile: Mapping[int, float] | None = None) -> None:
        known = sorted((profile or _PRIOR).items())
        self._rows = np.array([rows for rows, _ in known], dtype=np.float64)
        self._logs = np.log([seconds for _, seconds in known])
        self._level = 0.0
        self._rounds = 0 if profile is None else round(1 / _WHOLE)
        self._tables: dict[int, np.ndarray] = {}

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._rounds > 0

    def seconds(self, rows: int) -> float:
        """Seconds of a pass over this number of rows."""
        return float(self.table(rows)[rows])

    def table(self, most: int) -> np.ndarray:
        """Seconds of passes over 0 … ``most`` rows; do not write to it."""
        size = 64
        while size <= most:
            size *= 2
        if size not in self._tables:
            self._tables[size] = self._made(size)
        return self._tables[size]

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a round; one of far more rows than were profiled, such as a long prompt's, tells little."""
        if not 1 <= rows <= 2 * self._rows[-1] or seconds <= 0:
            return
        self._rounds += 1
        error = math.log(seconds) - math.log(self.seconds(rows))
        if self._rounds > 1:
            error = max(-_OUTLIER, min(_OUTLIER, error))
        share = max(_WHOLE, 1 / self._rounds)
        self._level += share * error
        place = int(np.searchsorted(self._rows, rows))
        for near in {max(0, place - 1), min(place, len(self._rows) - 1)}:
            distance = abs(self._rows[near] - rows) / max(self._rows[near], rows)
            self._logs[near] += _PART * (1 - share) * error * max(0.0, 1 - 2 * distance)
        self._tables.clear()

    def _made(self, size: int) -> np.ndarray:
        rows = np.arange(size + 1, dtype=np.float64)
        values = np.maximum.accumulate(np.exp(self._logs + self._level))
        table = np.interp(rows, self._rows, values)
        past = rows > self._rows[-1]
        table[past] = values[-1] * rows[past] / self._rows[-1]  # arithmetic grows with the rows
        return table
