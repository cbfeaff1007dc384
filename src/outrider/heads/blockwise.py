"""Blockwise parallel decoding: one feed-forward layer makes a row for each later token, which the LM head reads.

Source: Stern, Shazeer, Uszkoreit, "Blockwise parallel decoding for deep autoregressive models", 2018, §4 and figure 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

if TYPE_CHECKING:
    from outrider.models.base import TargetModel


@dataclass(frozen=True)
class BlockwiseConfig:
    """Configuration of the layer."""

    width: int
    """Width of the target's hidden rows."""
    vocabulary: int
    """Size of the draft vocabulary: the target's, or a reduced one, whose target ids are in ``ids``."""
    heads: int = 4
    """Number of drafted tokens; token d (0-based) is d + 2 places after its row's own."""
    inner: int = 0
    """Width of the hidden layer for each head; 0 is the target's width."""
    hidden_layers: ClassVar[tuple[int, ...]] = ()
    """None: it reads only the rows after the final norm."""


class BlockwiseHead(nn.Module):
    """x_d = x + W₂·ReLU(W₁·x), all d at once, and the target's own LM head on each."""

    ids: torch.Tensor
    projection: torch.Tensor

    def __init__(self, config: BlockwiseConfig) -> None:
        """Make the layer; the LM head is all zeros until :meth:`share`."""
        super().__init__()
        self.config = config
        self.widen = nn.Linear(config.width, config.heads * (config.inner or config.width))
        self.outputs = nn.Linear(self.widen.out_features, config.heads * config.width)
        nn.init.zeros_(self.outputs.weight)
        nn.init.zeros_(self.outputs.bias)
        self.register_buffer("ids", torch.arange(config.vocabulary))
        self.register_buffer("projection", torch.zeros(config.vocabulary, config.width), persistent=False)
        self.lm_head: nn.Module | None = None
        """The LM head's rows as a layer, after :meth:`give_projection`."""

    @classmethod
    def initial(
        cls, config: BlockwiseConfig, target: TargetModel, ids: torch.Tensor | None = None, seed: int = 0
    ) -> BlockwiseHead:
        """Make a layer whose guesses start as the target's own next token.

        ``ids`` is a reduced draft vocabulary, int64 [vocabulary], ascending; None is the target's.  ``seed`` fixes W₁.
        """
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            head = cls(config)
        if ids is not None:
            head.ids.copy_(ids)
        head.share(target)
        return head

    def share(self, target: TargetModel) -> None:
        """Copy the rows of the target's LM head, which are not stored with the weights."""
        self.projection = target.unembed_rows(self.ids).to(self.projection)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the guesses: target rows after the final norm [..., width] → [..., heads, vocabulary]."""
        rows = self.outputs(torch.relu(self.widen(hidden))).unflatten(-1, (self.config.heads, self.config.width))
        guesses = hidden.unsqueeze(-2) + rows
        logits: torch.Tensor = guesses @ self.projection.T if self.lm_head is None else self.lm_head(guesses)
        return logits

    @torch.no_grad()
    def give_projection(self) -> None:
        """Make the LM head's rows a linear layer, which can be packed for the kernels; only for inference."""
        vocabulary, width = self.projection.shape
        layer = nn.Linear(width, vocabulary, bias=False)
        layer.weight.copy_(self.projection)
        self.lm_head = layer
        self.projection = self.projection[:0]


CONFIG, HEAD = BlockwiseConfig, BlockwiseHead
