"""EAGLE-1 and EAGLE-2: predict the target's next feature, and with its LM head the next token.

Source: Li et al. 2024 (arXiv 2401.15077, §4.1); with more than one step, the context alignment of HASS (2408.15766).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import smooth_l1_loss

from outrider.heads.eagle import EagleConfig, EagleHead
from outrider.models.base import TargetModel
from outrider.options import option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes._new_head import block_shape, new_head
from outrider.train.recipes._unroll import unroll, unrolled_acceptance
from outrider.train.recipes._weighted_loss import WeightedLoss
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, register, starts, target_law


@register
@dataclass(frozen=True)
class EagleRecipe(Recipe):
    """Options of training an EAGLE-1 head; EAGLE-2 drafts with the same weights."""

    method: ClassVar[str] = "eagle"

    steps: int = option(3, "Unrolled drafting steps; the paper's is 1.", low=1, high=16)
    decay: float = option(0.8, "Loss weight of each step relative to the one before.", low=0.0, high=1.0)
    noise: float = option(0.2, "Width of the uniform noise on features.", low=0.0, high=10.0)
    feature_weight: float = option(1.0, "Weight of the smooth L1 loss of features.", low=0.0)
    token_weight: float = option(0.1, "Weight of the objective.", low=0.0)
    inner: int = option(0, "Width of the head's feed-forward part; 0 is about 2.7 times the target's.", low=0)
    objective: str = option("kl", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> EagleHead:
        """A random head; it always drafts from the whole vocabulary."""
        config = EagleConfig(block_shape(target, self.inner), self.layers_read(target))
        return new_head(EagleHead, config, seed)

    def loss(self, head: EagleHead, batch: Batch, teacher: Teacher) -> LossReport:
        """Smooth L1 of the features and the objective of their tokens, over unrolled steps on noisy features."""
        counted = starts(batch, self.steps)
        loss = WeightedLoss(self, counted, batch.final)
        noise = (torch.rand(batch.final.shape, generator=batch.generator()) - 0.5).to(batch.final) * self.noise
        for depth, answers in enumerate(unroll(head, batch, teacher, self.steps, noise)):
            texts, rows = counted[depth].nonzero(as_tuple=True)
            if not len(rows):
                break
            guessed, x = answers[texts, rows], batch.following(depth + 2)[texts, rows]
            features = smooth_l1_loss(guessed, batch.final[texts, rows + 1 + depth], reduction="none").mean(-1)
            losses, z = self.feature_weight * features, guessed[:, :0]
            if self.token_weight:
                z, p = teacher.read(guessed), target_law(batch, teacher, texts, rows, depth)
                losses = losses + self.token_weight * self.divergence(z, p, x)
            loss.add(depth, (texts, rows), losses, z, x, feature=features)
        return loss.report()

    def acceptance(self, head: EagleHead, batch: Batch, teacher: Teacher) -> Acceptance:
        return unrolled_acceptance(head, batch, teacher, self.steps)
