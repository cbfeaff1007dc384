"""New heads: block sizes from the target, and initial weights from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from outrider.heads.blocks import BlockShape
from outrider.models.base import TargetModel

Head = TypeVar("Head", bound=torch.nn.Module)
_HEAD_WIDTH = 64
_SHARING = 3
"""Query heads per key head, if that divides."""


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


def draft_ids(target: TargetModel, vocabulary: torch.Tensor | None) -> torch.Tensor:
    """The tokens that a head drafts; all of the target's if ``vocabulary`` is None: int64 [v]."""
    return torch.arange(target.vocabulary) if vocabulary is None else vocabulary


def new_head(
    kind: Callable[[Any], Head], config: Any, seed: int, begin: Callable[[Head], None] = lambda head: None
) -> Head:
    """A head with random weights from a seed.

    Args:
        kind: its class.
        config: its configuration.
        seed: of the weights.
        begin: sets weights that are not random, and may draw more.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = kind(config)
        begin(head)
    return head
