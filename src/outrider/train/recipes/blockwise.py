"""Blockwise parallel decoding on a frozen target (Stern et al. 2018, §6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from outrider.heads.blockwise import Blockwise, BlockwiseConfig
from outrider.options import check_options, option
from outrider.train.features.batches import Batch
from outrider.train.objectives.base import Objective, make_objective
from outrider.train.recipes._depth_weights import geometric
from outrider.train.recipes._parallel import parallel_acceptance, parallel_loss
from outrider.train.recipes.base import Acceptance, LossReport, register

if TYPE_CHECKING:
    from outrider.models.base import TargetModel
    from outrider.train.features.teacher import Teacher


@register
@dataclass(frozen=True)
class BlockwiseRecipe:
    """Options of training the blockwise layer."""

    method: ClassVar[str] = "blockwise"

    heads: int = option(4, "Tokens drafted.", low=1, high=32)
    inner: int = option(0, "Width of the hidden layer for each of them; 0 is the target's width.", low=0)
    decay: float = option(1.0, "Weight of each token's loss over that of the token before it.", low=0.0, high=1.0)
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

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> Blockwise:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        size = target.vocabulary if vocabulary is None else len(vocabulary)
        config = BlockwiseConfig(target.width, size, self.heads, self.inner)
        return Blockwise.initial(config, target, vocabulary, seed)

    def loss(self, head: Blockwise, batch: Batch, teacher: Teacher) -> LossReport:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return parallel_loss(head, batch, teacher, self._objective, geometric(self.heads, self.decay))

    def acceptance(self, head: Blockwise, batch: Batch, teacher: Teacher) -> Acceptance:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return parallel_acceptance(head, batch, teacher, self.heads)
