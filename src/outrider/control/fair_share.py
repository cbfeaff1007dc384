"""The default controller: full drafts while there are rows, then equal shares."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config import SpeculationDefault
from outrider.control.base import LoadedMethod
from outrider.metrics import RoundStats
from outrider.price import RowPrice
from outrider.requests.turn import Budget, Turn


class FairShare:
    """Gives every drafting request the same limit and the method that it asks for, and verifies all drafts.

    Args:
        most_nodes: most nodes of a tree, anchor included.
        price: what a draft must promise; None uses the drafters' own prices.
        methods: what the engine has loaded, in its order; without them, the first drafter serves every request.
    """

    def __init__(self, most_nodes: int, price: RowPrice | None = None, methods: Sequence[LoadedMethod] = ()) -> None:
        self.most_nodes, self._price = most_nodes, price
        self.default = SpeculationDefault()
        self._most = [method.most_nodes for method in methods] or [most_nodes]
        self._places = {method.name: place for place, method in enumerate(methods)}
        self._readers = [place for place, method in enumerate(methods) if method.reads_prediction]

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        """Give each turn its share of the draft rows, or what it can use if that is less."""
        drafting = []
        for turn in turns:
            if turn.most_nodes > 1:
                drafter, nodes = self._wish(turn)
                if nodes > 1:
                    drafting.append((turn, drafter, min(nodes, turn.most_nodes)))
        share = 1 + draft_rows // max(1, len(drafting))
        for turn, drafter, nodes in drafting:
            turn.budget = Budget(min(nodes, share), drafter, self._price)

    def _wish(self, turn: Turn) -> tuple[int, int]:
        """The drafter that serves a request, and the most nodes of its tree."""
        request, params, default = turn.request, turn.request.params, self.default
        if not (default.enabled if params.speculate is None else params.speculate):
            return 0, 1
        drafter = self._places.get(params.algorithm or default.algorithm or "", 0)
        if request.prediction and params.algorithm is None and self._readers and drafter not in self._readers:
            drafter = self._readers[0]
        most = default.max_draft_tokens if params.max_draft_tokens is None else params.max_draft_tokens
        nodes = self._most[drafter] if most is None else min(self._most[drafter], 1 + most)
        return drafter, nodes + turn.most_forced

    def prune(self, turns: Sequence[Turn]) -> None:
        """Keep every tree: drafters already leave out drafts that are not worth a row."""

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Observe nothing."""
