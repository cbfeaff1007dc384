"""Sizes of a new head's blocks, from its target's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.heads.blocks import BlockShape

if TYPE_CHECKING:
    from outrider.models.base import TargetModel

_HEAD_WIDTH = 64
_SHARING = 3
"""Query heads per key head, where that divides."""


def block_shape(target: TargetModel, inner: int = 0, *, head_norms: bool = False) -> BlockShape:
    """A block as wide as the target's rows.

    Args:
        target: the model drafted for.
        inner: width of the feed-forward part; 0 is about 2.7 times the row's, in whole groups of 32.
        head_norms: whether queries and keys are normed.
    """
    width = target.width
    heads = max(1, width // _HEAD_WIDTH)
    head_width = width // heads - width // heads % 2
    return BlockShape(
        width=width,
        heads=heads,
        key_heads=heads // _SHARING if heads % _SHARING == 0 else heads,
        head_width=head_width,
        inner=inner or max(1, round(width * 8 / 3 / 32)) * 32,
        positions=target.context_length,
        head_norms=head_norms,
    )
