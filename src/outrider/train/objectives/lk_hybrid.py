"""From forward KL, while the draft is far from the target, to total variation when it is near.

Source: the LK losses of arXiv 2602.23881, the hybrid form.
"""

from __future__ import annotations

from typing import Final

import torch

from outrider.train.objectives.base import objective
from outrider.train.objectives.kl import kl
from outrider.train.objectives.tv import tv

ETA: Final = 3.0


@objective(reads_teacher=True, reads_tokens=False)
def lk_hybrid(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """λ·KL + (1 − λ)·TV with λ = exp(−η·α), through which no gradient flows."""
    distance = tv(z, p, x)
    weight = torch.exp(-ETA * (1.0 - distance.detach()))
    return weight * kl(z, p, x) + (1.0 - weight) * distance
