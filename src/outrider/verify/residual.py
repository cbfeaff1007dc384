"""Shared by ratio rules: the law of a draft, the ratio test and the residual.

The lemma behind all of them: draw x from q, accept it with probability ``min(1, p(x)/q(x))``, otherwise draw from
``norm(max(p − q, 0))``; the outcome has law p, because ``min(p, q) + max(p − q, 0) = p`` and the residual's mass is the
probability of rejection (Leviathan et al. 2023, appendix A.1; Chen et al. 2023, theorem 1).  A second candidate may
then be tested against the residual, and so on, each with the law it was drawn from *given the candidates before it*.
Nothing else is required of that law, so candidates of one node may come from different drafters, be drawn with or
without replacement, or be certain.
"""

from __future__ import annotations

import numpy as np

from outrider.law import Law
from outrider.sampling.noise import Purpose
from outrider.tree import Candidate, TokenTree
from outrider.verify.base import Dice, Rows, Verdict


def law(tree: TokenTree, candidate: Candidate, vocabulary: int) -> Law:
    """Law of a candidate's token given its path and the siblings drawn before it; one-hot for a certain draft."""
    if candidate.q is None:
        certain = np.zeros(vocabulary)
        certain[tree.tokens[candidate.node]] = 1.0
        return certain
    if not candidate.removed:
        return candidate.q
    left: Law = candidate.q.copy()
    left[list(candidate.removed)] = 0.0
    left /= left.sum()
    return left


def ratio(p: float, q: float) -> float:
    """``min(1, p/q)`` for the test ``u·q < p``: nothing impossible under p passes, and q may be 0."""
    if p <= 0.0:
        return 0.0
    return 1.0 if p >= q else p / q


def residual(p: Law, q: Law) -> Law:
    """``norm(max(p − q, 0))``, the law that remains after a draft from q was rejected against p.

    Returns p itself if nothing remains: p equals q except for rounding, or p is the law of an unreadable row.
    """
    left = np.maximum(p - q, 0.0)
    mass = float(left.sum())
    return left / mass if mass > 0.0 else p


def select(tree: TokenTree, node: int, p: Law, accept: Dice) -> tuple[int | None, Law]:
    """Test the candidates below a node in the order they were drawn, each against the residual of the earlier ones.

    Any order that is fixed before the tokens are known would do; draws without replacement need this one, since each
    law depends on the draws before it.  ``p`` is the target's distribution after the node.

    Returns:
        The accepted child or None, and the law of the next token.
    """
    for candidate in tree.siblings(node):
        q, x = law(tree, candidate, len(p)), tree.tokens[candidate.node]
        if accept.coin(candidate.node, ratio(float(p[x]), float(q[x]))):
            return candidate.node, p
        p = residual(p, q)
    return None, p


def top_down(tree: TokenTree, rows: Rows) -> Verdict:
    """Descend from the anchor along accepted children; where none is accepted, draw from the residual."""
    p, accept, final = rows.probabilities, rows.dice(Purpose.ACCEPT), rows.dice(Purpose.FINAL)
    path: list[int] = []
    node = 0
    while True:
        child, left = select(tree, node, p[node], accept)
        if child is None:
            return Verdict.of(tree, path, final.draw(node, left))
        path.append(child)
        node = child


def chain_of(tree: TokenTree) -> tuple[Candidate, ...]:
    """Candidates of a chain, in order.

    Raises:
        ValueError: the tree branches, or a node was drawn more than once.
    """
    if not tree.is_chain or [candidate.node for candidate in tree.candidates] != list(range(1, len(tree))):
        raise ValueError("this acceptance rule is exact for chains only, with one draw per token")
    return tree.candidates
