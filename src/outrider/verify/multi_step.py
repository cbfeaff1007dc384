"""Multi-step speculative sampling: several independent draws below one node."""

from __future__ import annotations

from typing import ClassVar

from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict, register
from outrider.verify.residual import top_down


@register
class MultiStep:
    """Tests a node's draws in turn; each failure replaces p by ``norm(max(p − q, 0))`` with the q of that draw.

    A token drawn twice is tested twice, so trees keep multiplicities; a tree merged from several drafters is tested
    with each draw's own q.  The paper visits children in random order; the order of drawing is as good,
    because it was fixed before the tokens were known.

    Source: Miao et al., "SpecInfer: accelerating large language model serving with tree-based speculative inference
    and verification", 2024, algorithm 2 (verify stochastic) and theorem 4.2.
    """

    name: ClassVar[str] = "multi-step"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.INDEPENDENT
    trees: ClassVar[bool] = True
    merged: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        return top_down(tree, rows)
