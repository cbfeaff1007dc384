"""EAGLE-1 and EAGLE-2: a block or two continue the target's hidden rows, and the target's LM head reads them.

Source: Li et al. 2024 (arXiv 2401.15077, §3; 2406.16858).  The row of position i joins the target's last hidden row at
i with the embedding of the token at i + 1, and predicts the hidden row at i + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from outrider.heads.blocks import Attend, BlockShape, DecoderBlock, HeadParts, Rotary, own_embedding


@dataclass(frozen=True)
class EagleConfig:
    """Configuration of an EAGLE-1 or EAGLE-2 head."""

    block: BlockShape
    hidden_layers: tuple[int, ...]
    """The one target layer it reads: the LM head's input."""
    blocks: int = 1
    joint_bias: bool = True
    """Whether the projection of embedding and feature has a bias."""
    first_norm: bool = False
    """Whether the first block norms its rows before attention."""
    embedding: int = 0
    """Rows of an embedding of its own; 0 is the target's."""


class EagleHead(nn.Module):
    """The network; its LM head is the target's."""

    ids: torch.Tensor | None = None
    """It drafts from the target's whole vocabulary."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.embed_tokens = own_embedding(config.embedding, config.block)
        self.fc = nn.Linear(2 * width, width, bias=config.joint_bias)
        self.layers: Sequence[DecoderBlock] = nn.ModuleList(  # type: ignore[assignment]
            DecoderBlock(config.block, first_norm=config.first_norm or index > 0) for index in range(config.blocks)
        )
        self.rotary = Rotary(config.block)

    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of its only layer."""
        (rows,) = features
        return rows

    def parts(self) -> HeadParts:
        return HeadParts(self.config.block, self.rotary.rotation, [layer.parts for layer in self.layers], entry=self.fc)

    def forward(
        self, embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Compute one step for every row: predict the features of the tokens, fp32 [batch, rows, width].

        ``features`` are the target's, fused, or an earlier step's answer; ``positions`` are theirs, int64 [batch,
        rows]. ``embeddings`` are the target's, of the tokens after the features.
        """
        rows = self.fc(torch.cat((embeddings, features), dim=-1))
        turns = self.rotary(positions)
        for layer in self.layers:
            rows = layer(rows, turns, attend)
        return rows

    def logits(self, features: torch.Tensor, unembed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Logits of the token after each predicted feature."""
        return unembed(features)


CONFIG, HEAD = EagleConfig, EagleHead
