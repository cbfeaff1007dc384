"""How much each drafted position counts in a loss: a draft is of use only where all before it were accepted."""

from __future__ import annotations

import torch


def geometric(depths: int, ratio: float) -> torch.Tensor:
    """λ^k for k = 0 … depths − 1 (Medusa, EAGLE-3): fp32 [depths]."""
    return ratio ** torch.arange(depths, dtype=torch.float32)


def exponential(depths: int, scale: float) -> torch.Tensor:
    """exp(−k ÷ γ) for k = 0 … depths − 1 (DFlash, DSpark): fp32 [depths]."""
    return torch.exp(-torch.arange(depths, dtype=torch.float32) / scale)


def d_pace(q: torch.Tensor, alpha: float) -> torch.Tensor:
    """D-PACE: weigh each position by what the accepted length would gain from it, as the draft now stands.

    With the smoothed confidence c_i = (1 − α)·q_i + α the expected accepted length is L = Σ_j Π_{i ≤ j} c_i; the
    weight of position k is ∂L ÷ ∂ log c_k = Σ_{j ≥ k} Π_{i ≤ j} c_i.

    Args:
        q: [..., depths], the draft's probability of each position's true token; no gradient flows through it.
        alpha: smoothing, from 0 (weights as the draft deserves) to 1 (weights depths, depths − 1 … 1).

    Returns:
        [..., depths].
    """
    survival = torch.cumprod((1.0 - alpha) * q.detach() + alpha, -1)
    return survival.flip(-1).cumsum(-1).flip(-1)
