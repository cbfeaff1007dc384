"""Medusa's heads: each guesses one later token from the row that gave the next one.

Source: Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads", 2024, §2.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from outrider.target.base import TargetModel


@dataclass(frozen=True)
class MedusaConfig:
    """The shape of the heads."""

    width: int
    """Of the target's hidden rows."""
    vocabulary: int
    """Tokens a head drafts from: the target's, or a reduced draft vocabulary."""
    heads: int = 4
    """Head d (0-based) guesses the token d + 2 places after its row's own."""
    layers: int = 1
    """Residual blocks per head."""
    reduced: bool = False
    """Whether columns of the logits are places in ``ids`` instead of target ids."""


class ResidualBlock(nn.Module):
    """x + SiLU(W·x + b); with W and b zero, as it starts, it is x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [..., width] to rows [..., width]."""
        out: torch.Tensor = x + nn.functional.silu(self.linear(x))
        return out


class Medusa(nn.Module):
    """k heads side by side, each of residual blocks and its own LM part."""

    ids: torch.Tensor | None

    def __init__(self, config: MedusaConfig) -> None:
        """Make heads whose LM parts are still random."""
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.width) for _ in range(config.layers))) for _ in range(config.heads)
        )
        self.lm_heads = nn.ModuleList(
            nn.Linear(config.width, config.vocabulary, bias=False) for _ in range(config.heads)
        )
        self.register_buffer("ids", torch.zeros(config.vocabulary, dtype=torch.int64) if config.reduced else None)

    @classmethod
    def initial(cls, config: MedusaConfig, target: TargetModel, ids: torch.Tensor | None = None) -> Medusa:
        """Heads as they are before training: each is the target's own LM head.

        Args:
            config: the shape.
            target: the model drafted for.
            ids: int64 [vocabulary], ascending, the draft vocabulary of a reduced head.
        """
        head = cls(config)
        if ids is not None and head.ids is not None:
            head.ids.copy_(ids)
        rows = target.unembed_rows(torch.arange(config.vocabulary) if ids is None else ids)
        with torch.no_grad():
            for part in head.lm_heads:
                part.weight.copy_(rows)
        return head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The heads' guesses.

        Args:
            hidden: [..., width], the target's rows after the final norm.

        Returns:
            Logits [..., heads, vocabulary].
        """
        each = [part(block(hidden)) for block, part in zip(self.blocks, self.lm_heads, strict=True)]
        return torch.stack(each, -2)
