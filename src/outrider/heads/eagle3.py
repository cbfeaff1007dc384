"""EAGLE-3: one wide block on features of three target layers, with a draft vocabulary of its own.

Source: Li et al. 2025 (arXiv 2503.01840, §3), and EAGLE-3.1's two norms (arXiv 2605.09992).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from outrider.heads.blocks import (
    Attend,
    Attention,
    BlockParts,
    BlockShape,
    GatedNetwork,
    HeadParts,
    Rotary,
    own_embedding,
    take_over,
)


@dataclass(frozen=True)
class Eagle3Config:
    """Configuration of an EAGLE-3 head."""

    block: BlockShape
    hidden_layers: tuple[int, ...]
    """Target layers whose outputs are fused, in the order of the projection's inputs."""
    vocabulary: int
    """Size of the draft vocabulary; 0 is the target's, through the target's LM head."""
    target_width: int = 0
    """Width of the target's rows; 0 is the block's."""
    norm_before_residual: bool = False
    """Whether the residual stream starts from the normed feature."""
    feature_norms: bool = False
    """Whether each layer's feature is normed before they are fused (EAGLE-3.1)."""
    norm_output: bool = False
    """Whether the next step reads the row after the final norm (EAGLE-3.1)."""
    joined_norm: bool = False
    """Whether the layers' features are normed as one row before they are fused."""
    fusion_bias: bool = False
    embedding: int = 0
    """Rows of an embedding of its own; 0 is the target's."""
    blocks: ClassVar[int] = 1


class Eagle3Block(nn.Module):
    """A decoder block whose attention reads embedding and feature side by side."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        shape = config.block
        self._norm_before_residual = config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.hidden_norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.self_attn = Attention(shape, inputs=2 * shape.width)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.mlp = GatedNetwork(shape)

    def forward(
        self,
        embeddings: torch.Tensor,
        features: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        """Twice [batch, rows, width] → [batch, rows, width]."""
        normed = self.hidden_norm(features)
        both = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        rows = (normed if self._norm_before_residual else features) + self.self_attn(both, turns, attend)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class Eagle3Head(nn.Module):
    """The network."""

    ids: torch.Tensor | None
    """int64 [vocabulary], ascending target ids of the draft vocabulary; None is all."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        width, read = config.block.width, config.target_width or config.block.width
        self.feature_norms = nn.ModuleList(
            nn.RMSNorm(read, config.block.norm_epsilon) for _ in config.hidden_layers if config.feature_norms
        )
        joined = len(config.hidden_layers) * read
        self.joined_norm = nn.RMSNorm(joined, config.block.norm_epsilon) if config.joined_norm else nn.Identity()
        self.embed_tokens = own_embedding(config.embedding, config.block)
        self.fc = nn.Linear(joined, width, bias=config.fusion_bias)
        self.midlayer = Eagle3Block(config)
        self.norm = nn.RMSNorm(width, config.block.norm_epsilon)
        self.lm_head = nn.Linear(width, config.vocabulary, bias=False) if config.vocabulary else None
        self.rotary = Rotary(config.block)
        self.register_buffer("ids", torch.arange(config.vocabulary) if config.vocabulary else None)

    @torch.no_grad()
    def begin(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Start near the target: its highest layer passes through a block that adds nothing, to its LM head.

        See :func:`outrider.heads.blocks.take_over` for the arguments.
        """
        take_over(self, ids, rows)
        width, read = self.fc.out_features, self.config.target_width or self.fc.out_features
        self.fc.weight.mul_(0.1)
        self.fc.weight[:, -read:] += torch.eye(width, read)
        for last in (self.midlayer.self_attn.o_proj, self.midlayer.mlp.down_proj):
            nn.init.zeros_(last.weight)

    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse rows of the layers it reads: [..., target width] each → [..., width]."""
        if self.config.feature_norms:
            features = [norm(rows) for norm, rows in zip(self.feature_norms, features, strict=True)]
        return self.fc(self.joined_norm(torch.cat(tuple(features), dim=-1)))

    def parts(self) -> HeadParts:
        layer, first = self.midlayer, self.config.norm_before_residual
        block = BlockParts(
            layer.self_attn,
            layer.mlp,
            None if first else layer.hidden_norm,
            layer.post_attention_layernorm,
            beside_norm=layer.input_layernorm,
            joins=True,
        )
        return HeadParts(
            self.config.block,
            self.rotary.rotation,
            [block],
            entry_norm=layer.hidden_norm if first else None,
            final_norm=self.norm,
            lm_head=self.lm_head,
            answers_normed=self.config.norm_output,
        )

    def forward(
        self, embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Compute one step for every row; see :meth:`outrider.heads.eagle.EagleHead.forward`."""
        rows = self.midlayer(embeddings, features, self.rotary(positions), attend)
        return self.norm(rows) if self.config.norm_output else rows

    def logits(self, features: torch.Tensor, unembed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Logits of the token after each step's answer: [..., width] → [..., vocabulary]."""
        normed = features if self.config.norm_output else self.norm(features)
        return unembed(normed) if self.lm_head is None else self.lm_head(normed)


CONFIG, HEAD = Eagle3Config, Eagle3Head
