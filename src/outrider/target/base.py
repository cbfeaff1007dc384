"""What the engine asks of a model, whichever backend runs it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from outrider.kv.pool import PagedCache
from outrider.tree import TreeBatch


class TargetOutput(NamedTuple):
    """The answer of one pass."""

    logits: torch.Tensor
    """[wanted rows, vocabulary], in the model's own precision."""
    hidden: dict[int, torch.Tensor]
    """Hidden rows [rows, width] of each layer asked for; layer i is the output of block i."""


class TargetModel(Protocol):
    """A causal language model that computes rows against a paged cache."""

    vocabulary: int
    """Columns of the logits; a tokenizer may know fewer ids."""
    context_length: int
    """Most positions it can serve."""
    row_invariant: bool
    """Whether a row's logits are the same bits whatever else is in the pass."""
    device: torch.device
    row_bytes: int
    """Bytes of keys and values of one position, all layers together."""

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        """Compute every row of a batch, writing its keys and values into the cache.

        Args:
            batch: rows of every sequence; its wanted rows get logits.
            cache: this model's pages, already extended to hold the batch's rows.
            layers: blocks whose hidden rows to return.
        """
        ...
