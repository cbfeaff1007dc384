"""The blocks of trained heads: attention, a gated network and rotary positions.

A block gets an ``Attend`` that keeps its keys and values and knows which rows see which.  So one module serves
training, where rows are a whole text under a mask, and drafting, where they are a tree's nodes and keys lie in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Queries [batch, heads, rows, width], keys and values [batch, key heads, rows, width] and the scale of the scores →
[batch, rows, heads, width]."""


@dataclass(frozen=True)
class BlockShape:
    """Sizes and options of a decoder block."""

    width: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    norm_epsilon: float = 1e-6
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    """transformers' ``rope_parameters``."""
    positions: int = 4096
    """The longest text; some rotations depend on it."""
    projection_bias: bool = False
    """Whether queries, keys and values have biases."""
    head_norms: bool = False
    """Whether each head's queries and keys are normed."""
    output_bias: bool = False
    """Whether the output projection has a bias."""


def _linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias)


def own_embedding(rows: int, shape: BlockShape) -> nn.Embedding | None:
    """Make a head's own embedding; None if it has no rows."""
    return nn.Embedding(rows, shape.width) if rows else None


class Rotary(nn.Module):
    """Cosines and sines of positions, for rotary embeddings as in Llama (Su et al. 2021)."""

    def __init__(self, shape: BlockShape) -> None:
        from transformers import LlamaConfig  # takes seconds to import, which options alone do not need

        from outrider.models.hf.blueprint import blueprint

        super().__init__()
        config = LlamaConfig(
            hidden_size=shape.heads * shape.head_width,
            num_attention_heads=shape.heads,
            num_hidden_layers=1,
            head_dim=shape.head_width,
            max_position_embeddings=shape.positions,
            rope_parameters=dict(shape.rope),
        )
        frequencies, self._scale = blueprint(config).rotations(shape.positions)[0]
        self.register_buffer("_frequencies", frequencies, persistent=False)
        self._frequencies: torch.Tensor

    @property
    def rotation(self) -> tuple[torch.Tensor, float]:
        """Inverse frequencies, fp32 [head width / 2], and the scale of cosines and sines."""
        return self._frequencies, self._scale

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute cosines and sines of positions: int64 [..., rows] → two fp32 [..., 1, rows, head width]."""
        angles = positions.unsqueeze(-1).float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(-3)
        return angles.cos() * self._scale, angles.sin() * self._scale


def turn(rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate [..., heads, rows, width] by their positions' cosines and sines."""
    cosines, sines = turns
    left, right = rows.chunk(2, dim=-1)
    return rows * cosines + torch.cat((-right, left), dim=-1) * sines


class Attention(nn.Module):
    """Grouped-query attention of rows of width ``inputs``, or the shape's; the ``Attend`` keeps its keys and values."""

    def __init__(self, shape: BlockShape, inputs: int | None = None) -> None:
        super().__init__()
        read, query, key = inputs or shape.width, shape.heads * shape.head_width, shape.key_heads * shape.head_width
        self._shape = shape
        self.q_proj = _linear(read, query, shape.projection_bias)
        self.k_proj = _linear(read, key, shape.projection_bias)
        self.v_proj = _linear(read, key, shape.projection_bias)
        self.o_proj = _linear(query, shape.width, shape.output_bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(shape.head_width, shape.norm_epsilon) if shape.head_norms else nn.Identity() for _ in range(2)
        )

    def forward(self, rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], attend: Attend) -> torch.Tensor:
        """[batch, rows, inputs] → [batch, rows, width]."""
        query = turn(self.q_norm(self._heads(self.q_proj(rows))), turns)
        mixed = attend(query, *self.keys_and_values(rows, turns), self._shape.head_width**-0.5)
        return self.o_proj(mixed.flatten(-2))

    def keys_and_values(
        self, rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, rows, inputs] → twice [batch, key heads, rows, head width]."""
        return turn(self.k_norm(self._heads(self.k_proj(rows))), turns), self._heads(self.v_proj(rows))

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(-1, (-1, self._shape.head_width)).transpose(-3, -2)


class GatedNetwork(nn.Module):
    """Feed-forward network: down(silu(gate) · up)."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.gate_proj = _linear(shape.width, shape.inner)
        self.up_proj = _linear(shape.width, shape.inner)
        self.down_proj = _linear(shape.inner, shape.width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., width] → [..., width]."""
        return self.down_proj(nn.functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


@dataclass(frozen=True, eq=False)
class BlockParts:
    """The modules of a block; a norm without a weight does nothing."""

    attention: Attention
    network: GatedNetwork
    attention_norm: nn.Module | None
    network_norm: nn.Module
    beside_norm: nn.Module | None = None
    joins: bool = False
    """Whether attention reads [row beside it; row]."""


@dataclass(frozen=True, eq=False)
class HeadParts:
    """A head's computation as data, so kernels that know its blocks can run it without the head's own code."""

    shape: BlockShape
    rotation: tuple[torch.Tensor, float]
    """Inverse frequencies, and the scale of cosines and sines."""
    blocks: Sequence[BlockParts]
    entry: nn.Linear | None = None
    """Projects [row beside it; row] to the first block's row."""
    entry_norm: nn.Module | None = None
    """Norm of the first block's rows, the residual stream included."""
    final_norm: nn.Module | None = None
    lm_head: nn.Linear | None = None
    answers_normed: bool = False
    """Whether a step returns rows after the final norm."""


class DecoderBlock(nn.Module):
    """A pre-norm decoder block; without ``first_norm``, as in EAGLE, rows are not normed before attention."""

    def __init__(self, shape: BlockShape, *, first_norm: bool = True) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, shape.norm_epsilon) if first_norm else nn.Identity()
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.mlp = GatedNetwork(shape)

    @property
    def parts(self) -> BlockParts:
        """Its modules."""
        return BlockParts(self.self_attn, self.mlp, self.input_layernorm, self.post_attention_layernorm)

    def forward(self, rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], attend: Attend) -> torch.Tensor:
        """[batch, rows, width] → [batch, rows, width]."""
        rows = rows + self.self_attn(self.input_layernorm(rows), turns, attend)
        return rows + self.mlp(self.post_attention_layernorm(rows))


@torch.no_grad()
def take_over(head: nn.Module, ids: torch.Tensor, rows: torch.Tensor) -> None:
    """Start a head's own LM head, if it has one, from the target's.

    ``ids`` are the ascending target ids of the draft vocabulary, int64 [vocabulary]; ``rows`` are their rows of the
    target's LM head, [vocabulary, width].
    """
    if head.ids is not None and head.lm_head is not None:
        head.ids.copy_(ids)  # type: ignore[operator]
        head.lm_head.weight.copy_(rows)  # type: ignore[union-attr, operator]


class Slots(NamedTuple):
    """Output of one pass for a block's drafted slots."""

    hidden: torch.Tensor
    """[..., drafts, width], normed."""
    logits: torch.Tensor
    """[..., drafts, vocabulary], before correction."""
