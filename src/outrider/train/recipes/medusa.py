"""Medusa-1: heads on a frozen target (Cai et al. 2024, §2.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.heads.medusa import MedusaConfig, MedusaHead
from outrider.models.base import TargetModel
from outrider.options import option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes._new_head import draft_ids
from outrider.train.recipes._parallel import parallel_acceptance, parallel_chances, parallel_loss
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, register


@register
@dataclass(frozen=True)
class MedusaRecipe(Recipe):
    """Options of training Medusa heads."""

    method: ClassVar[str] = "medusa"

    heads: int = option(4, "Heads; each drafts one more token.", low=1, high=32)
    layers: int = option(1, "Residual blocks per head.", low=1, high=8)
    decay: float = option(0.8, "Loss weight of each head relative to the one before.", low=0.0, high=1.0)
    objective: str = option("cross_entropy", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> MedusaHead:
        config = MedusaConfig(target.width, len(draft_ids(target, vocabulary)), self.heads, self.layers)
        return MedusaHead.initial(config, target, vocabulary)

    def loss(self, head: MedusaHead, batch: Batch, teacher: Teacher) -> LossReport:
        return parallel_loss(self, head, batch, teacher)

    def acceptance(self, head: MedusaHead, batch: Batch, teacher: Teacher) -> Acceptance:
        return parallel_acceptance(head, batch, teacher, self.heads)

    def calibrate(self, head: MedusaHead, batches: Sequence[Batch], teacher: Teacher) -> Mapping[str, float]:
        """Set how often each head's guess of each rank is right, which gives the shape of the tree."""
        chances = parallel_chances(head, batches, self.heads)
        head.config = dataclasses.replace(head.config, chances=chances)
        return {}
