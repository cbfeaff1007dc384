"""The protocol of models, for all backends."""

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
    """Output of one pass."""

    logits: torch.Tensor
    """[wanted rows, vocabulary], in the model's own precision."""
    hidden: dict[int, torch.Tensor]
    """[rows, width] of each requested layer, for all rows of the pass: layer i is the output of block i, and the layer
    after the last block is the LM head's input, after the final norm."""


class Rollback(enum.Enum):
    """What a model's state can take back after a pass."""

    TREE = "every row but those of one path of a tree"
    CHAIN = "the end of a chain"
    NONE = "nothing"


class TargetModel(Protocol):
    """A causal language model that computes rows with a paged cache."""

    backend: str
    """Name of the backend, for people."""
    vocabulary: int
    """Columns of the logits; a tokenizer may have fewer ids."""
    width: int
    """Width of a hidden row."""
    layers: int
    """Number of decoder blocks, and the layer number of the rows after the final norm."""
    context_length: int
    """Maximum positions."""
    row_invariant: bool
    """Whether a row's logits have the same bits whatever else is in the pass."""
    own_threads: bool
    """Whether it computes on the kernels' threads, so torch should use only one."""
    rollback: Rollback
    """Which drafts it can verify: what its state can take back."""
    row_buckets: tuple[int, ...]
    """Row counts to pad passes to, ascending; empty if no padding helps."""
    precision: str
    """Precision of weights and activations, for people."""
    packed_bytes: int
    """Bytes of the weights in memory."""
    token_bytes: int
    """Bytes of weights that it reads for one token, without an embedding table that is only looked up in."""
    device: torch.device
    row_bytes: int
    """Bytes of keys and values of one position, over all layers."""
    source: Path | None
    """Folder or file it was loaded from; None for a model made in memory."""

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        """Compute every row of a batch, and write its keys and values into the cache.

        Args:
            batch: rows of every sequence; its wanted rows get logits.
            cache: this model's pages, already extended for the batch's rows.
            layers: layers whose hidden rows to return, each from 0 to :attr:`layers`.

        Raises:
            ModelError: there is no such layer.
        """
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed tokens, int64 [n] → fp32 [n, width], with the family's scale if it has one."""
        ...

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits of rows after the final norm, fp32 [n, width] → fp32 [n, vocabulary].

        A row-invariant model gives the same bits as in the pass.
        """
        ...

    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the LM head's matrix for columns of the logits, int64 [n] → fp32 [n, width]."""
        ...


def check_layers(asked: Sequence[int], blocks: int) -> None:
    """Refuse layers that a model with this many blocks does not have.

    Raises:
        ModelError: naming the layer and the model's layers.
    """
    for layer in asked:
        if not 0 <= layer <= blocks:
            raise ModelError(
                f"hidden rows of layer {layer} were asked for, but the model's layers are 0 to {blocks} "
                f"({blocks} means after the final norm)"
            )


class HiddenLogits:
    """A model without blocks or weights: the hidden rows of layer 0 are the logits, and its LM head changes nothing."""

    layers = 0
    own_threads = False
    rollback = Rollback.TREE
    row_buckets: tuple[int, ...] = ()
    precision = "exact"
    packed_bytes = token_bytes = 0

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = self.width = vocabulary

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens' unit vectors."""
        return torch.nn.functional.one_hot(tokens, self.vocabulary).float()

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embed(ids)
