"""What the engine asks of a model, whichever backend runs it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from outrider.errors import ModelError
from outrider.kv.pool import PagedCache
from outrider.tree import TreeBatch


class TargetOutput(NamedTuple):
    """The answer of one pass."""

    logits: torch.Tensor
    """[wanted rows, vocabulary], in the model's own precision."""
    hidden: dict[int, torch.Tensor]
    """Of each layer asked for, [rows, width] for all rows of the pass: layer i is the output of block i, and the one
    past the last block is what the head reads, the rows after the final norm."""


class Rollback(enum.Enum):
    """What a model's state can take back after a pass."""

    TREE = "every row but those of one path of a tree"
    CHAIN = "the end of a chain"
    NONE = "nothing"


class TargetModel(Protocol):
    """A causal language model that computes rows against a paged cache."""

    backend: str
    """Name of the backend, shown where a model is shown."""
    vocabulary: int
    """Columns of the logits; a tokenizer may know fewer ids."""
    width: int
    """Numbers in a hidden row."""
    layers: int
    """Decoder blocks, and the number under which the rows after the final norm are asked for."""
    context_length: int
    """Most positions it can serve."""
    row_invariant: bool
    """Whether a row's logits are the same bits whatever else is in the pass."""
    own_threads: bool
    """Whether it computes on the kernels' threads, which torch's should then leave alone."""
    rollback: Rollback
    """What its state can take back: it decides which drafts can be verified."""
    row_buckets: tuple[int, ...]
    """Row counts that passes should be padded to, rising; empty where any count is as good."""
    precision: str
    """What weights and activations are computed in, for people."""
    packed_bytes: int
    """Bytes of the weights in memory."""
    token_bytes: int
    """Bytes of weights that one token makes it read: an embedding table that is only looked up in is left out."""
    device: torch.device
    row_bytes: int
    """Bytes of keys and values of one position, all layers together."""
    source: Path | None
    """The folder or file it was loaded from; None for a model made in memory."""

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        """Compute every row of a batch, writing its keys and values into the cache.

        Args:
            batch: rows of every sequence; its wanted rows get logits.
            cache: this model's pages, already extended to hold the batch's rows.
            layers: whose hidden rows to return, each from 0 to :attr:`layers`.

        Raises:
            ModelError: there is no such layer.
        """
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embedding table's rows of some tokens, times the family's scale if it has one.

        Args:
            tokens: int64 [n].

        Returns:
            fp32 [n, width].
        """
        ...

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of rows after the final norm; where the model is row-invariant, the same bits as in the pass.

        Args:
            hidden: fp32 [n, width].

        Returns:
            fp32 [n, vocabulary].
        """
        ...

    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the head's matrix, as plain numbers.

        Args:
            ids: int64 [n], columns of the logits.

        Returns:
            fp32 [n, width].
        """
        ...


def check_layers(asked: Sequence[int], blocks: int) -> None:
    """Refuse hidden rows that a model cannot have.

    Args:
        asked: layers whose hidden rows are asked for.
        blocks: decoder blocks of the model.

    Raises:
        ModelError: naming the layer and those there are.
    """
    for layer in asked:
        if not 0 <= layer <= blocks:
            raise ModelError(
                f"hidden rows of layer {layer} were asked for, but the model's layers are 0 to {blocks} "
                f"({blocks} means after the final norm)"
            )


class HiddenLogits:
    """A model without blocks or weights: layer 0 of its hidden rows is the logits, which its head leaves as they are.

    Args:
        vocabulary: columns of the logits.
    """

    layers = 0
    own_threads = False
    rollback = Rollback.TREE
    row_buckets: tuple[int, ...] = ()
    precision = "exact"
    packed_bytes = token_bytes = 0

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = self.width = vocabulary

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """A token is its unit vector."""
        return torch.nn.functional.one_hot(tokens, self.vocabulary).float()

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embed(ids)
