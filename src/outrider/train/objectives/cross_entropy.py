"""Cross-entropy with the text's own next token."""

from __future__ import annotations

import torch

from outrider.train.objectives.base import objective


@objective(reads_teacher=False, reads_tokens=True)
def cross_entropy(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """−log q(x)."""
    return torch.nn.functional.cross_entropy(z, x, reduction="none")
