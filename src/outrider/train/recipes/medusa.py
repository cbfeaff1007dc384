"""Medusa-1: heads on a frozen target (Cai et al. 2024, §2.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from outrider.heads.medusa import Medusa, MedusaConfig
from outrider.options import check_options, option
from outrider.train.features.batches import Batch
from outrider.train.objectives.base import Objective, make_objective
from outrider.train.recipes._depth_weights import geometric
from outrider.train.recipes._parallel import parallel_acceptance, parallel_chances, parallel_loss
from outrider.train.recipes.base import Acceptance, LossReport, register

if TYPE_CHECKING:
    from outrider.models.base import TargetModel
    from outrider.train.features.teacher import Teacher


@register
@dataclass(frozen=True)
class MedusaRecipe:
    """Options of training Medusa heads."""

    method: ClassVar[str] = "medusa"

    heads: int = option(4, "Heads, each for one later token.", low=1, high=32)
    layers: int = option(1, "Residual blocks per head.", low=1, high=8)
    decay: float = option(0.8, "Weight of each head's loss over that of the head before it.", low=0.0, high=1.0)
    objective: str = option("cross_entropy", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

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

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> Medusa:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        size = target.vocabulary if vocabulary is None else len(vocabulary)
        config = MedusaConfig(target.width, size, self.heads, self.layers)
        return Medusa.initial(config, target, vocabulary)

    def loss(self, head: Medusa, batch: Batch, teacher: Teacher) -> LossReport:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return parallel_loss(head, batch, teacher, self._objective, geometric(self.heads, self.decay))

    def acceptance(self, head: Medusa, batch: Batch, teacher: Teacher) -> Acceptance:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return parallel_acceptance(head, batch, teacher, self.heads)

    def calibrate(self, head: Medusa, batches: Sequence[Batch], teacher: Teacher) -> Mapping[str, float]:
        """See :class:`outrider.train.recipes.base.Recipe`; the accuracies that a tree is made from."""
        chances = parallel_chances(head, batches, self.heads)
        head.config = dataclasses.replace(head.config, chances=chances)
        return {}
