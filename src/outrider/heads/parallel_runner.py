"""Runs heads that guess every depth from one row, for a drafter."""

from __future__ import annotations

from typing import Any

import torch

from outrider.heads.runner import TokenIds, ready
from outrider.models.base import TargetModel


class ParallelRunner:
    """Such a head, ready to run.

    Args:
        head: rows [n, width] to logits [n, depths, v], with ``ids`` [v]; packed or not.
        target: whose rows it reads.
    """

    def __init__(self, head: Any, target: TargetModel) -> None:
        self._head = ready(head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layer = target.layers
        """The rows after the final norm."""
        self.depths: int = head.config.heads

    @torch.inference_mode()
    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, width] → [n, depths, vocabulary] in target token ids; the next call overwrites it."""
        found = self._head(rows.float())
        return self._ids.spread(found.flatten(0, 1)).unflatten(0, found.shape[:2])
