"""The default controller: full drafts while there are rows, then equal shares."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.metrics import RoundStats
from outrider.price import RowPrice
from outrider.requests.turn import Budget, Turn


class FairShare:
    """Gives every drafting request the same limit, and verifies all drafts.

    Args:
        most_nodes: most nodes of a tree, anchor included.
        price: what a draft must promise; None uses the drafters' own prices.
    """

    def __init__(self, most_nodes: int, price: RowPrice | None = None) -> None:
        self.most_nodes, self._price = most_nodes, price

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        """Give each turn its share of the draft rows, or what it can use if that is less."""
        drafting = [turn for turn in turns if turn.most_nodes > 1]
        share = 1 + draft_rows // max(1, len(drafting))
        for turn in drafting:
            turn.budget = Budget(min(turn.most_nodes, share), price=self._price)

    def prune(self, turns: Sequence[Turn]) -> None:
        """Keep every tree: drafters already leave out drafts that are not worth a row."""

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Observe nothing."""
