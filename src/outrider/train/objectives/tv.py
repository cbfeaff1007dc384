"""Total variation distance: the probability that a draft is rejected, and so the exact objective.

Its gradient vanishes where p and q have little in common, so it needs a warm start or a companion.
"""

from __future__ import annotations

import torch

from outrider.train.objectives.base import objective


@objective(reads_teacher=True, reads_tokens=False)
def tv(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """1 − α = ½·‖p − q‖₁."""
    return 1.0 - torch.minimum(p, torch.softmax(z, -1)).sum(-1)
