"""EAGLE-1 and EAGLE-2: guess the target's next feature, and through its LM head the next token.

Source: Li et al. 2024 (arXiv 2401.15077, §4.1); with more than one step, the context alignment of HASS (2408.15766).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn.functional import smooth_l1_loss

from outrider.heads.eagle import EagleConfig, EagleHead
from outrider.options import check_options, option
from outrider.train.features.batches import Batch
from outrider.train.objectives.base import Objective, make_objective
from outrider.train.recipes._depth_weights import geometric
from outrider.train.recipes._head_shape import block_shape
from outrider.train.recipes._unroll import unroll, unrolled_acceptance
from outrider.train.recipes.base import Acceptance, LossReport, register, starts

if TYPE_CHECKING:
    from outrider.models.base import TargetModel
    from outrider.train.features.teacher import Teacher


@register
@dataclass(frozen=True)
class EagleRecipe:
    """Options of training an EAGLE-1 head; EAGLE-2 drafts with the same weights."""

    method: ClassVar[str] = "eagle"

    steps: int = option(3, "Unrolled drafting steps; the paper's is 1.", low=1, high=16)
    decay: float = option(0.8, "Weight of each step's loss over that of the step before it.", low=0.0, high=1.0)
    noise: float = option(0.2, "Width of the uniform noise on features.", low=0.0, high=10.0)
    feature_weight: float = option(1.0, "Weight of the features' smooth L1.", low=0.0)
    token_weight: float = option(0.1, "Weight of the objective.", low=0.0)
    inner: int = option(0, "Width of the head's feed-forward part; 0 is about 2.7 times the target's.", low=0)
    objective: str = option("kl", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)
        make_objective(self.objective)

    @cached_property
    def _objective(self) -> Objective:
        return make_objective(self.objective)

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return (target.layers,)

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> EagleHead:
        """See :class:`outrider.train.recipes.base.Recipe`; the vocabulary is always the target's whole."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return EagleHead(EagleConfig(block_shape(target, self.inner), self.layers_read(target)))

    def loss(self, head: EagleHead, batch: Batch, teacher: Teacher) -> LossReport:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        counted, shares = starts(batch, self.steps), geometric(self.steps, self.decay).tolist()
        parts: dict[str, torch.Tensor] = {}
        total, weight = batch.final.new_zeros(()), 0.0
        noise = (torch.rand(batch.final.shape, generator=batch.generator()) - 0.5).to(batch.final) * self.noise
        for depth, answers in enumerate(unroll(head, batch, teacher, self.steps, noise)):
            texts, rows = counted[depth].nonzero(as_tuple=True)
            if not len(rows):
                break
            guessed, true = answers[texts, rows], batch.final[texts, rows + 1 + depth]
            features = smooth_l1_loss(guessed, true, reduction="none").mean(-1)
            losses = self.feature_weight * features
            if self.token_weight:
                p = torch.softmax(teacher.logits(true), -1)
                x = batch.following(depth + 2)[texts, rows]
                losses = losses + self.token_weight * self._objective(teacher.read(guessed), p, x)
            parts |= {f"loss_{depth + 1}": losses.detach().mean(), f"feature_{depth + 1}": features.detach().mean()}
            total = total + shares[depth] * losses.sum()
            weight += shares[depth] * len(rows)
        return LossReport(total / max(weight, 1e-9), weight, parts)

    def acceptance(self, head: EagleHead, batch: Batch, teacher: Teacher) -> Acceptance:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return unrolled_acceptance(head, batch, teacher, self.steps)
