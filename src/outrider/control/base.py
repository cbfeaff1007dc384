"""What a controller is: it spreads a pass's draft rows over requests, prunes trees, and learns what rounds cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.engine.turn import Turn
from outrider.metrics import RoundStats


class Controller(Protocol):
    """Decides how much each request drafts.  It changes the speed only: every budget gives the same text."""

    most_nodes: int
    """Most nodes of a tree that a budget may ever allow, anchor included."""

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        """Set each turn's ``budget``, before anything is drafted.

        Under a ratio rule a budget may rest on nothing but what is committed.

        Args:
            turns: of the round; a turn that reaches no anchor has no budget to set.
            draft_rows: rows of the pass that drafts may take, all requests together.
        """
        ...

    def prune(self, turns: Sequence[Turn]) -> None:
        """Cut drafted trees; asked only under rules that judge a draft by the target's own token."""
        ...

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Learn what became of a round and what it cost."""
        ...
