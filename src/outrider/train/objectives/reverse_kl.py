"""Reverse Kullback-Leibler divergence: the draft says only what the target may say."""

from __future__ import annotations

import torch

from outrider.train.objectives.base import objective

_LEAST = 1e-30
"""Probabilities below this count as this, so that no logarithm is infinite."""


@objective(reads_teacher=True, reads_tokens=False)
def reverse_kl(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """KL(q ‖ p) = Σ q·(log q − log p)."""
    log_q = torch.log_softmax(z, -1)
    return (log_q.exp() * (log_q - p.clamp(min=_LEAST).log())).sum(-1)
