"""Traversal verification: a tree is tested from its leaves to its root."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from outrider.law import Law, is_unreadable
from outrider.sampling.noise import Purpose
from outrider.tree import Candidate, TokenTree
from outrider.verify.base import Answers, Dice, Draws, Rows, Verdict, register
from outrider.verify.residual import law, ratio


class _Traversal:
    """One walk over a tree.

    Every node carries a share ``a`` and a law P: its subtree must end the walk with probability a, and the token
    after the node must then have law P.  The root has ``a = 1`` and P = p.  A child x drawn from Q gets
    ``a·P(x)/Q(x)``, at most 1, so it takes ``min(aP, Q)`` on average, and when it fails ``r = max(aP − Q, 0)`` is left
    for its parent: with ``S = Σ r`` the parent goes on with ``a ← S / (S + 1 − a)`` and ``P ← r/S``.
    """

    def __init__(self, tree: TokenTree, p: Answers[Law], accept: Dice) -> None:
        self._tree, self._p, self._accept = tree, p, accept
        self._below: dict[int, list[Candidate]] = {}
        for candidate in tree.candidates:
            self._below.setdefault(tree.parents[candidate.node], []).append(candidate)

    def end(self, node: int, a: float) -> tuple[list[int], Law] | None:
        """Where the walk ends below a node of share a, or at it: the nodes from there up, and the next token's law."""
        if a == 0.0:
            return None
        P = self._p[node]
        # A token drawn twice is one node: its first draw takes what grows below it, the second is a bare leaf there.
        for candidate in self._below.pop(node, ()):
            Q, x = law(self._tree, candidate, len(P)), self._tree.tokens[candidate.node]
            found = self.end(candidate.node, ratio(a * float(P[x]), float(Q[x])))
            if found is not None:
                found[0].append(node)
                return found
            a, P = _rest(a, P, Q)
        return ([node], P) if self._accept.coin(node, a) else None


def _rest(a: float, P: Law, Q: Law) -> tuple[float, Law]:
    """Share and law of a node after a child drawn from Q has failed."""
    r = np.maximum(a * P - Q, 0.0)
    S = float(r.sum())
    if S == 0.0:
        # A row that cannot be read takes nothing from its children.  Else the node stays certain if it was: its child
        # could not fail but for rounding.
        return (a if is_unreadable(P) or a == 1.0 else 0.0), P
    return S / (S + (1.0 - a)), r / S


@register
class Traversal:
    """Ends at the first node, children before parents, whose test succeeds; on a chain it is block verification.

    A rejected node does not take its parent with it, and its subtree has been tried before it is rejected, so it
    accepts more of a tree than rules that walk down from the root.

    Source: Weng et al., "Traversal verification for speculative tree decoding", 2025 (arXiv 2505.12398).
    """

    name: ClassVar[str] = "traversal"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.WITHOUT_REPLACEMENT
    trees: ClassVar[bool] = True
    merged: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        """See :class:`outrider.verify.base.Verifier`."""
        accept, final = rows.dice(Purpose.ACCEPT), rows.dice(Purpose.FINAL)
        found = _Traversal(tree, rows.probabilities, accept).end(0, 1.0)
        if found is None:
            raise AssertionError("the root's share is 1, so the walk ends there at the latest")
        (*path, _), left = found
        return Verdict.of(tree, path[::-1], final.draw(path[0] if path else 0, left))
