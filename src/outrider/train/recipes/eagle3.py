"""EAGLE-3: cross-entropy to the target over unrolled steps, no loss on features (Li et al. 2025, §3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.heads.eagle3 import Eagle3Config, Eagle3Head
from outrider.models.base import TargetModel
from outrider.options import option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import draft_columns
from outrider.train.recipes._new_head import block_shape, draft_ids, new_head
from outrider.train.recipes._unroll import unroll, unrolled_acceptance
from outrider.train.recipes._weighted_loss import NAMES, WeightedLoss, Weights
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, register, starts, target_law


@register
@dataclass(frozen=True)
class Eagle3Recipe(Recipe):
    """Options of training an EAGLE-3 head."""

    method: ClassVar[str] = "eagle3"

    steps: int = option(5, "Unrolled drafting steps.", low=1, high=16)
    weights: str = option("geometric", f"Loss weights of drafted tokens: {NAMES}.")
    decay: float = option(0.8, "Loss weight of each step relative to the one before.", low=0.0, high=1.0)
    scale: float = option(4.0, "Steps after which an exponential weight has fallen to 1/e.", low=0.1, high=1000.0)
    smoothing: float = option(0.5, "Smoothing of D-PACE's weights.", low=0.0, high=1.0)
    inner: int = option(0, "Width of the head's feed-forward part; 0 is about 2.7 times the target's.", low=0)
    objective: str = option("kl", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def __post_init__(self) -> None:
        super().__post_init__()
        Weights.of(self)

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """A low, a middle and a high layer, as in the paper's code."""
        depth = target.layers
        return tuple(sorted({max(0, layer) for layer in (min(1, depth - 1), depth // 2 - 1, depth - 4)}))

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> Eagle3Head:
        ids = draft_ids(target, vocabulary)
        config = Eagle3Config(block_shape(target, self.inner), self.layers_read(target), len(ids))
        return new_head(Eagle3Head, config, seed, lambda head: head.begin(ids, target.unembed_rows(ids)))

    def loss(self, head: Eagle3Head, batch: Batch, teacher: Teacher) -> LossReport:
        """The objective of the tokens drafted by each unrolled step, weighted by depth."""
        counted = starts(batch, self.steps)
        loss = WeightedLoss(self, counted, batch.final)
        for depth, answers in enumerate(unroll(head, batch, teacher, self.steps)):
            texts, rows = counted[depth].nonzero(as_tuple=True)
            x, known = draft_columns(head.ids, batch.following(depth + 2)[texts, rows])
            texts, rows, x = texts[known], rows[known], x[known]
            if not len(rows):
                break
            p = target_law(batch, teacher, texts, rows, depth, head.ids)
            z = head.logits(answers[texts, rows], teacher.logits)
            loss.add(depth, (texts, rows), self.divergence(z, p, x), z, x)
        return loss.report()

    def acceptance(self, head: Eagle3Head, batch: Batch, teacher: Teacher) -> Acceptance:
        return unrolled_acceptance(head, batch, teacher, self.steps)
