"""Fits draft trees to their requests' grammars: forbidden drafts cost no row, and forced tokens are drafted for free.

Both leave every rule exact.  Only drafts without a distribution are pruned: the target gives a forbidden token no
chance, so no rule would accept it, and nothing follows from its absence.  A drawn draft stays, for rules that reason
about what was drawn.

Forced tokens are a chain of certain drafts below one leaf, whichever that is.  No rule accepts the leaf more or less
often because of them: with certain drafts only the coins of the chain decide where in it a rule ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from outrider.errors import RequestError
from outrider.grammar import GrammarState
from outrider.requests.turn import Turn
from outrider.tree import TokenTree

MOST_FORCED: Final = 32
"""Most forced tokens of one request in one round."""


class GrammarDrafts:
    """Prunes and extends the trees of requests with a grammar.

    Args:
        most: most forced tokens per tree; 0 where the rule or the target can take none.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def fit(self, turns: Sequence[Turn]) -> None:
        """Fit the trees of a round."""
        for turn in turns:
            grammar, tree = turn.request.sampler.grammar, turn.tree
            if grammar is not None and tree is not None and turn.budget.nodes > 1:
                turn.tree = self._extended(turn, grammar, pruned(grammar, tree))

    def _extended(self, turn: Turn, grammar: GrammarState, tree: TokenTree) -> TokenTree:
        """The tree with what is forced behind its deepest leaf."""
        depth = max(tree.depths)
        leaf = tree.depths.index(depth)
        most = min(self.most, turn.budget.nodes - len(tree), turn.most_depth - depth)
        if most <= 0 or turn.endings.reached(tree.paths[leaf]):
            return tree
        forced: Sequence[int] = ()
        with suppress(RequestError):  # the row itself says so, if the text gets there
            forced = grammar.forced(tree.paths[leaf], most)
        return tree.forcing(leaf, forced) if forced else tree


def pruned(grammar: GrammarState, tree: TokenTree) -> TokenTree:
    """The tree without drafts that the grammar forbids, those with a distribution and what hangs on them excepted."""
    drawn = {candidate.node for candidate in tree.candidates if candidate.q is not None}
    kept = {0: None}
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        with suppress(RequestError):
            if parent in kept and (node in drawn or grammar.allows(tree.paths[parent], tree.tokens[node])):
                kept[node] = None
    return tree if len(kept) == len(tree) else tree.subtree(list(kept))
