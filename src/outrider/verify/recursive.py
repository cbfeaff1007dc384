"""Recursive rejection sampling: several draws without replacement below one node."""

from __future__ import annotations

from typing import ClassVar

from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict, register
from outrider.verify.residual import top_down


@register
class Recursive:
    """Tests a node's draws in turn; a failed token leaves both p, by the residual, and q, which is renormalised.

    No draw is spent on a token that was rejected already, so it accepts more than independent draws do.  Leaving q as
    it was would be wrong: the second draw has the law of q *without* the first.

    Source: Jeon et al., "Recursive speculative decoding: accelerating LLM inference via sampling without
    replacement", 2024 (arXiv 2402.14160); Yang et al., "Multi-candidate speculative decoding", 2024 (arXiv 2401.06706).
    """

    name: ClassVar[str] = "recursive"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.WITHOUT_REPLACEMENT
    trees: ClassVar[bool] = True
    merged: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        return top_down(tree, rows)
