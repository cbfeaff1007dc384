"""Negative log acceptance: total variation with a gradient that does not vanish far from the target.

Source: the LK losses of arXiv 2602.23881, the likelihood form.
"""

from __future__ import annotations

import torch

from outrider.train.objectives.base import objective

_LEAST = 1e-9
"""An acceptance below this counts as this: the gradient is the inverse of it."""


@objective(reads_teacher=True, reads_tokens=False)
def acceptance(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """−log α."""
    alpha = torch.minimum(p, torch.softmax(z, -1)).sum(-1)
    return -alpha.clamp(min=_LEAST).log()
