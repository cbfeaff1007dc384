"""Medusa's heads: each guesses one later token from the row that gave the next one.

Source: Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads", 2024, §2.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

if TYPE_CHECKING:
    from outrider.models.base import TargetModel


@dataclass(frozen=True)
class MedusaConfig:
    """The shape of the heads."""

    width: int
    """Of the target's hidden rows."""
    vocabulary: int
    """Tokens a head drafts from: the target's, or a reduced vocabulary, whose target ids are in ``ids``."""
    heads: int = 4
    """Head d (0-based) guesses the token d + 2 places after its row's own."""
    layers: int = 1
    """Residual blocks per head."""
    chances: tuple[tuple[float, ...], ...] = ()
    """How often the guess of each rank is right, by head, as measured on held-out texts: what a tree is made from."""
    hidden_layers: ClassVar[tuple[int, ...]] = ()
    """It reads no block's output, only the rows after the final norm."""


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


class MedusaHead(nn.Module):
    """k heads side by side, each of residual blocks and its own LM part."""

    ids: torch.Tensor

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
        self.register_buffer("ids", torch.arange(config.vocabulary))

    @classmethod
    def initial(cls, config: MedusaConfig, target: TargetModel, ids: torch.Tensor | None = None) -> MedusaHead:
        """Heads as they are before training: each is the target's own LM head.

        Args:
            config: the shape.
            target: the model drafted for.
            ids: int64 [vocabulary], ascending, a reduced draft vocabulary; None is the target's.
        """
        head = cls(config)
        if ids is not None:
            head.ids.copy_(ids)
        rows = target.unembed_rows(head.ids)
        for part in head.lm_heads:
            part.load_state_dict({"weight": rows})
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


CONFIG, HEAD = MedusaConfig, MedusaHead
