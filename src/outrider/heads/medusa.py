"""Medusa's heads: each predicts one later token from the target's last hidden row.

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
    """Configuration of the heads."""

    width: int
    """Width of the target's hidden rows."""
    vocabulary: int
    """Size of the draft vocabulary: the target's, or a reduced one, whose target ids are in ``ids``."""
    heads: int = 4
    """Number of heads; head d (0-based) predicts the token d + 2 places after its row's own."""
    layers: int = 1
    """Residual blocks per head."""
    chances: tuple[tuple[float, ...], ...] = ()
    """How often the guess of each rank is right, by head, measured on held-out texts; they shape the tree."""
    hidden_layers: ClassVar[tuple[int, ...]] = ()
    """None: it reads only the rows after the final norm."""


class ResidualBlock(nn.Module):
    """x + SiLU(W·x + b); W and b start at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] → [..., width]."""
        out: torch.Tensor = x + nn.functional.silu(self.linear(x))
        return out


class MedusaHead(nn.Module):
    """Independent heads, each with residual blocks and an LM head of its own."""

    ids: torch.Tensor

    def __init__(self, config: MedusaConfig) -> None:
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
        """Make heads that start as the target's own LM head.

        ``ids`` is a reduced draft vocabulary, int64 [vocabulary], ascending; None is the target's.
        """
        head = cls(config)
        if ids is not None:
            head.ids.copy_(ids)
        rows = target.unembed_rows(head.ids)
        for part in head.lm_heads:
            part.load_state_dict({"weight": rows})
        return head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the heads: target rows after the final norm [..., width] → [..., heads, vocabulary]."""
        each = [part(block(hidden)) for block, part in zip(self.blocks, self.lm_heads, strict=True)]
        return torch.stack(each, -2)


CONFIG, HEAD = MedusaConfig, MedusaHead
