"""Jensen-Shannon divergence: bounded, between forward and reverse."""

from __future__ import annotations

import torch

from outrider.train.objectives.base import objective

_LEAST = 1e-30
"""Probabilities below this count as this, so that no logarithm is infinite."""


@objective(reads_teacher=True, reads_tokens=False)
def jsd(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """½·KL(p ‖ m) + ½·KL(q ‖ m) with m = ½(p + q)."""
    log_q = torch.log_softmax(z, -1)
    q = log_q.exp()
    log_m = (0.5 * (p + q)).clamp(min=_LEAST).log()
    return 0.5 * (torch.xlogy(p, p) - p * log_m + q * (log_q - log_m)).sum(-1)
