"""Modified rejection sampling: the ratio test of speculative sampling, on a chain."""

from __future__ import annotations

from typing import ClassVar

from outrider.sampling.noise import Purpose
from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict, register
from outrider.verify.residual import chain_of, law, ratio, residual


def accepted_prefix(tree: TokenTree, rows: Rows) -> Verdict:
    """Accept x₁, x₂, … each with probability ``min(1, p(x)/q(x))``; replace the first that fails, and stop there."""
    p, accept, final = rows.probabilities, rows.dice(Purpose.ACCEPT), rows.dice(Purpose.FINAL)
    n = 0
    for candidate in chain_of(tree):
        P, x = p[n], tree.tokens[candidate.node]
        q = law(tree, candidate, len(P))
        if not accept.coin(candidate.node, ratio(float(P[x]), float(q[x]))):
            return Verdict.of(tree, range(1, n + 1), final.draw(n, residual(P, q)))
        n += 1
    return Verdict.of(tree, range(1, n + 1), final.draw(n, p[n]))


@register
class Rejection:
    """Tests drafts one by one; the first to fail is replaced by a draw from ``norm(max(p − q, 0))``.

    When all pass, the bonus is drawn from the target's distribution after the last.  A draft that is certain has
    ``q(x) = 1`` and passes with probability p(x).

    Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", 2023, algorithm 1;
    Chen et al., "Accelerating large language model decoding with speculative sampling", 2023, algorithm 2.
    """

    name: ClassVar[str] = "rejection"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.INDEPENDENT
    trees: ClassVar[bool] = False
    merged: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        return accepted_prefix(tree, rows)
