"""The point-mass rule: draw the target's token, accept the draft that equals it."""

from __future__ import annotations

from typing import ClassVar

from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict, register
from outrider.verify.coupled import walk


@register
class PointMass:
    """Accepts draft x with probability p(x), for drafts that are certain given the text before them.

    ``y ~ p``; accept iff ``y = x``.  The emitted token has law p for every draft, so any scheduling of drafts, even
    one that looks at the drafted tokens, keeps the target's distribution.  It is the special case ``q(x) = 1`` of
    modified rejection sampling (Leviathan, Kalman, Matias, "Fast inference from transformers via speculative
    decoding", 2023, §2.3).  Drafters propose their most probable tokens, which p most probably draws.
    """

    name: ClassVar[str] = "point-mass"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.ARGMAX
    trees: ClassVar[bool] = True
    merged: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        return Verdict.of(tree, *walk(tree, rows.tokens))
