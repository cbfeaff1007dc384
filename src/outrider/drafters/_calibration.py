"""Correct a drafter's estimates by the acceptance in the same request."""

from __future__ import annotations

from typing import Final

from outrider.tree import TokenTree
from outrider.verify.base import Verdict

_PRIOR: Final = 2.0
"""Weight of the uncorrected estimate, in tested drafts."""
_MEMORY: Final = 48.0
"""After this many tested drafts, or rounds without drafts, the past counts 1/e as much."""


class Calibration:
    """Ratio of accepted to expected drafts.

    Old rounds are forgotten, also while nothing is drafted, so a drafter that was wrong gets another try.  The
    correction of a round uses only earlier rounds, so every acceptance rule stays exact.
    """

    def __init__(self) -> None:
        self._expected = self._accepted = 0.0

    @property
    def factor(self) -> float:
        """Factor for an estimated chance of acceptance."""
        return (_PRIOR + self._accepted) / (_PRIOR + self._expected)

    def observe(self, tree: TokenTree | None, verdict: Verdict) -> None:
        """Learn from a round, whose tree's survival was estimated with the current factor.

        ``tree`` is None if the round verified no tree of this drafter.
        """
        factor, tested = self.factor, 0 if tree is None else len(verdict.tested)
        keep = 1.0 - min(1.0, max(1, tested) / _MEMORY)
        self._expected *= keep
        self._accepted *= keep
        if tree is None:
            return
        for node in (0, *verdict.path)[:tested]:
            survived, below = tree.survival[node], sum(tree.survival[child] for child in tree.children[node])
            self._expected += below / survived / factor if survived else 0.0
        self._accepted += sum(verdict.accepted)
