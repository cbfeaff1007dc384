"""Typical acceptance: a lossy rule for comparisons with published results; the text is not the target's.

It is registered like any other rule, with ``lossless`` False.  Only its own name selects it, and the audit refuses it.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from outrider.law import Law, best
from outrider.tree import TokenTree
from outrider.verify.base import Answers, Draws, Rows, Verdict, register

EPSILON: Final = 0.09
"""ε: a token with a higher probability is always accepted."""
DELTA: Final = math.sqrt(EPSILON)
"""δ: the factor of exp(−H), which the paper sets to √ε."""


def threshold(p: Law) -> float:
    """``min(ε, δ·exp(−H(p)))``: the higher the entropy, the lower the threshold."""
    possible = p[p > 0.0]
    entropy = -float((possible * np.log(possible)).sum())
    return min(EPSILON, DELTA * math.exp(-entropy))


def typical_path(tree: TokenTree, p: Answers[Law]) -> list[int]:
    """The longest path whose tokens all exceed the threshold; of equally long ones, the most probable."""
    longest: tuple[int, float, list[int]] = (0, 0.0, [])
    open_paths: list[tuple[int, float, list[int]]] = [longest]
    while open_paths:
        depth, likelihood, path = open_paths.pop()
        node = path[-1] if path else 0
        if not tree.children[node]:
            continue
        P = p[node]
        least = threshold(P)
        for child in tree.children[node]:
            x = float(P[tree.tokens[child]])
            if x > least:
                longer = (depth + 1, likelihood + math.log(x), [*path, child])
                longest = max(longest, longer, key=lambda found: found[:2])
                open_paths.append(longer)
    return longest[2]


@register
class Typical:
    """Accepts a draft that the target finds typical, ``p(x) > min(ε, δ·exp(−H(p)))``; **the output has another law**.

    The longest accepted path is kept, and the token after it is the target's most probable, as the paper's first token
    of every round is.  At temperature 0 the target's distribution is one token, so the text is then plain decoding's.

    Source: Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads", 2024
    (arXiv 2401.10774, §2.3.1), with the code's ε = 0.09 and δ = √ε.
    """

    name: ClassVar[str] = "typical"
    lossless: ClassVar[bool] = False
    draws: ClassVar[Draws] = Draws.ARGMAX
    trees: ClassVar[bool] = False
    merged: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        path = typical_path(tree, rows.probabilities)
        return Verdict.of(tree, path, best(rows.probabilities[path[-1] if path else 0]))
