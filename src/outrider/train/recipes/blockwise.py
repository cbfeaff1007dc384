"""Blockwise parallel decoding on a frozen target (Stern et al. 2018, §6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.heads.blockwise import BlockwiseConfig, BlockwiseHead
from outrider.models.base import TargetModel
from outrider.options import option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes._new_head import draft_ids
from outrider.train.recipes._parallel import parallel_acceptance, parallel_loss
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, register


@register
@dataclass(frozen=True)
class BlockwiseRecipe(Recipe):
    """Options of training the blockwise layer."""

    method: ClassVar[str] = "blockwise"

    heads: int = option(4, "Drafted tokens.", low=1, high=32)
    inner: int = option(0, "Width of the hidden layer per token; 0 is the target's width.", low=0)
    decay: float = option(1.0, "Loss weight of each token relative to the one before.", low=0.0, high=1.0)
    objective: str = option("cross_entropy", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> BlockwiseHead:
        config = BlockwiseConfig(target.width, len(draft_ids(target, vocabulary)), self.heads, self.inner)
        return BlockwiseHead.initial(config, target, vocabulary, seed)

    def loss(self, head: BlockwiseHead, batch: Batch, teacher: Teacher) -> LossReport:
        return parallel_loss(self, head, batch, teacher)

    def acceptance(self, head: BlockwiseHead, batch: Batch, teacher: Teacher) -> Acceptance:
        return parallel_acceptance(head, batch, teacher, self.heads)
