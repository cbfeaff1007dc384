"""The default controller: every request drafts as much as its method wants while rows last, then equal shares."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.turn import Budget, Turn
from outrider.metrics import RoundStats


class FairShare:
    """Gives each drafting request the same most rows; verifies whatever was drafted.

    Args:
        most_nodes: most nodes of a tree, anchor included.
    """

    def __init__(self, most_nodes: int) -> None:
        self.most_nodes = most_nodes

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        """Set each turn's budget to its share of the draft rows, or to all it can use where that is less."""
        drafting = [turn for turn in turns if turn.most_nodes > 1]
        share = 1 + draft_rows // max(1, len(drafting))
        for turn in drafting:
            turn.budget = Budget(min(turn.most_nodes, share))

    def prune(self, turns: Sequence[Turn]) -> None:
        """Leave every tree as it is: drafters stop where a draft is not worth its row."""

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Learn nothing."""
