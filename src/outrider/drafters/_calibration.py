"""A drafter's estimates, corrected by what became of them in the same request."""

from __future__ import annotations

from typing import Final

from outrider.tree import TokenTree
from outrider.verify.base import Verdict

_PRIOR: Final = 2.0
"""Tested drafts as which the estimates, taken to be right, count before anything was tested."""
_MEMORY: Final = 48.0
"""Tested drafts, or rounds without any, after which the past counts 1/e as much."""


class Calibration:
    """How often drafts were accepted, over how often they were expected to be.

    What lies back is forgotten, in rounds that draft nothing too, so that a drafter that was wrong is tried again.  The
    correction of a round rests on the rounds before it alone, so that every acceptance rule stays exact.
    """

    def __init__(self) -> None:
        self._expected = self._accepted = 0.0

    @property
    def factor(self) -> float:
        """What to multiply an estimated chance of acceptance by."""
        return (_PRIOR + self._accepted) / (_PRIOR + self._expected)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Learn what became of a tree whose survival was estimated with the factor before this call."""
        factor = self.factor
        keep = 1.0 - min(1.0, max(1, sum(verdict.tested)) / _MEMORY)
        self._expected *= keep
        self._accepted *= keep
        for node in (0, *verdict.path)[: len(verdict.tested)]:
            chance = sum(tree.survival[child] for child in tree.children[node]) / tree.survival[node]
            self._expected += chance / factor
        self._accepted += sum(verdict.accepted)
