"""Coupled sampling: a draft is accepted when it *is* the target's own token."""

from __future__ import annotations

from typing import ClassVar

from outrider.tree import TokenTree
from outrider.verify.base import Answers, Draws, Rows, Verdict, register


def walk(tree: TokenTree, tokens: Answers[int]) -> tuple[list[int], int]:
    """Follow the target's tokens down a tree; return the accepted nodes and the target's token after the last one."""
    path: list[int] = []
    node = 0
    while (child := tree.child(node, tokens[node])) is not None:
        path.append(child)
        node = child
    return path, tokens[node]


@register
class Coupled:
    """The target's token at a position is ``argmax(log p + Gumbel(seed, position))`` whatever was drafted.

    A drafter proposes ``argmax(log q + the same Gumbel)``, so it is right more often than an independent guess; the
    text depends only on target, prompt, parameters and seed.  Temperature 0 is the same rule without noise.

    Source: Gumbel-max coupling; Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant
    speculative decoding", 2024.
    """

    name: ClassVar[str] = "coupled"
    lossless: ClassVar[bool] = True
    draws: ClassVar[Draws] = Draws.PERTURBED
    trees: ClassVar[bool] = True
    merged: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        return Verdict.of(tree, *walk(tree, rows.tokens))
