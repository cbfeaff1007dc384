"""Block verification: the drafts of a chain are tested jointly."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from outrider.law import Law, is_unreadable
from outrider.sampling.noise import Purpose
from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict, register
from outrider.verify.residual import chain_of, law, ratio


def accepted_block(tree: TokenTree, rows: Rows) -> Verdict:
    """Accept the longest prefix whose test succeeds, even if tests of shorter ones would fail.

    The weight ``w_i = min(1, w_{i−1}·p(x_i)/q(x_i))`` is the share of prefix i that the target still accepts.  Let
    ``Z_i = Σ max(w_i·p − q, 0)`` over the next token.  Prefix i < γ is accepted with ``h_i = Z_i / (Z_i + 1 − w_i)``
    and followed by a draw from that residual; ``h_γ = w_γ``, followed by p; ``h_0 = 1``.  The tests are independent, so
    they start with the longest prefix and end at the first success.
    """
    p, accept, final = rows.probabilities, rows.dice(Purpose.ACCEPT), rows.dice(Purpose.FINAL)
    drafts = chain_of(tree)
    w, q = [1.0], []
    for i, candidate in enumerate(drafts):
        P, x = p[i], tree.tokens[candidate.node]
        q.append(law(tree, candidate, len(P)))
        w.append(ratio(w[i] * float(P[x]), float(q[i][x])))
        if w[-1] == 0.0:  # a token that the target rules out ends every prefix
            w.pop()
            break
    for i in reversed(range(1, len(w))):
        h, r = (w[i], p[i]) if i == len(drafts) else _test(w[i], p[i], q[i])
        if accept.coin(i, h):
            return Verdict.of(tree, range(1, i + 1), final.draw(i, r))
    r = _test(1.0, p[0], q[0])[1] if drafts else p[0]
    return Verdict.of(tree, (), final.draw(0, r))


def _test(w: float, p: Law, q: Law) -> tuple[float, Law]:
    """Probability ``h`` of accepting a prefix of weight w, and the weights of the next token."""
    r = np.maximum(w * p - q, 0.0)
    Z = float(r.sum())
    if Z == 0.0:
        # An unreadable row has all its mass on an outcome that no draft has: Z is w.  Otherwise w = 1 and p = q: the
        # next draft is certain to pass, and only rounding leads here.
        return (w if is_unreadable(p) else 0.0), p
    return Z / (Z + (1.0 - w)), r


@register
class Block:
    """Like modified rejection sampling, but a later success overrides earlier failures; never shorter on average.

    Source: Sun et al., "Block verification accelerates speculative decoding", 2024 (arXiv 2403.10444), algorithm 2.
    """

    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.INDEPENDENT
    trees: ClassVar[bool] = False
    merged: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        return accepted_block(tree, rows)
