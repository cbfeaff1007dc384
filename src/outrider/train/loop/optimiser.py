"""AdamW as every method is trained with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from outrider.train.settings import Settings

BETAS: Final = (0.9, 0.95)


def optimiser(weights: Sequence[torch.nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """AdamW over some weights; weight decay is for matrices alone."""
    matrices = [weight for weight in weights if weight.ndim > 1]
    vectors = [weight for weight in weights if weight.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=BETAS, fused=True)
