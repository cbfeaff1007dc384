"""Traversal verification: a tree is tested from its leaves to its root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from outrider.law import Law, is_unreadable
from outrider.sampling.noise import Purpose
from outrider.tree import Candidate, TokenTree
from outrider.verify.base import Answers, Dice, Draws, Rows, Verdict, register
from outrider.verify.residual import law, ratio


@dataclass
class _Visit:
    """A node on the path from the root to the current node of the walk."""

    node: int
    a: float
    """Share: the walk must end in the node's subtree with this probability."""
    P: Law
    """Law of the token after the node, if the walk ends at it."""
    left: Iterator[Candidate]
    """Draws below it that were not tested yet."""
    Q: Law
    """Law of the draw under test."""


def walk(tree: TokenTree, p: Answers[Law], accept: Dice) -> tuple[list[int], Law]:
    """Walk over a tree, children before parents, up to the first node whose test succeeds.

    Every node has a share ``a`` and a law P: the walk must end in its subtree with probability a, and the token after
    the node must then have law P.  The root has ``a = 1`` and P = p.  A child x drawn from Q gets ``a·P(x)/Q(x)``, at
    most 1, so it takes ``min(aP, Q)`` on average.  If it fails, ``r = max(aP − Q, 0)`` remains for its parent: with ``S
    = Σ r`` the parent continues with ``a ← S / (S + 1 − a)`` and ``P ← r/S``.

    Returns:
        The nodes from the root to the end of the walk, and the law of the token after the last one.
    """
    below: dict[int, list[Candidate]] = {}
    for candidate in tree.candidates:
        below.setdefault(tree.parents[candidate.node], []).append(candidate)

    def visit(node: int, a: float) -> _Visit:
        # A token drawn twice is one node: its first draw takes what grows below it, the second is a bare leaf there.
        return _Visit(node, a, p[node], iter(below.pop(node, ())), p[node])

    path = [visit(0, 1.0)]
    while path:
        here = path[-1]
        draw = next(here.left, None)
        if draw is not None:
            here.Q, x = law(tree, draw, len(here.P)), tree.tokens[draw.node]
            share = ratio(here.a * float(here.P[x]), float(here.Q[x]))
            if share > 0.0:
                path.append(visit(draw.node, share))
                continue
        elif accept.coin(here.node, here.a):
            return [one.node for one in path], here.P
        else:
            path.pop()
        if path:  # the draw that was being tried has failed
            path[-1].a, path[-1].P = _rest(path[-1].a, path[-1].P, path[-1].Q)
    raise AssertionError("the root's share is 1, so the walk ends there at the latest")


def _rest(a: float, P: Law, Q: Law) -> tuple[float, Law]:
    """Share and law of a node after a child drawn from Q has failed."""
    r = np.maximum(a * P - Q, 0.0)
    S = float(r.sum())
    if S == 0.0:
        # An unreadable row takes nothing from its children.  Otherwise a certain node stays certain: its child can only
        # have failed by rounding.
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
        accept, final = rows.dice(Purpose.ACCEPT), rows.dice(Purpose.FINAL)
        path, left = walk(tree, rows.probabilities, accept)
        return Verdict.of(tree, path[1:], final.draw(path[-1], left))
