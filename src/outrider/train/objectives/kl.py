"""Forward Kullback-Leibler divergence: the draft covers all that the target may say."""

from __future__ import annotations

import torch

from outrider.train.objectives.base import objective


@objective(reads_teacher=True, reads_tokens=False)
def kl(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """KL(p ‖ q) = Σ p·(log p − log q)."""
    return (torch.xlogy(p, p) - p * torch.log_softmax(z, -1)).sum(-1)
