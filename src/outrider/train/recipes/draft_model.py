"""A draft model made out of the target: some of its layers, distilled on the target's own answers.

Source: Zhou et al., "DistillSpec", ICLR 2024 (arXiv 2310.08461): distil on texts of the model itself; which divergence
is best depends on the task.  That a shallow part of a model is a cheap beginning is older: Sanh et al., "DistilBERT",
2019 (arXiv 1910.01108), §3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from outrider.options import check_options, option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.objectives.base import Objective, make_objective
from outrider.train.products import Product
from outrider.train.recipes._small_decoder import DraftModelProduct, chain_guesses, distillation_loss
from outrider.train.recipes._smaller import Cut, SmallDecoder, checked, evenly, numbered, source_of
from outrider.train.recipes.base import Acceptance, LossReport, best_tokens, chain_acceptance, register

if TYPE_CHECKING:
    from outrider.models.base import TargetModel
    from outrider.models.loading import ModelFiles


@dataclass(frozen=True)
class SmallDecoderOptions:
    """What is kept of the target, and how that is trained and judged."""

    method: ClassVar[str]

    layers: int = option(4, "Layers of the target kept, evenly spread with the first and the last.", low=1)
    chosen_layers: str = option("", "Which layers are kept, by their numbers from 0, such as 0,9,29; empty spreads.")
    inner: int = option(0, "Channels kept of each feed-forward part, the most useful; 0 is all.", low=0)
    steps: int = option(4, "Drafting depth that it is judged by.", low=1, high=64)
    others: int = option(
        2048, "Tokens beside the reduced vocabulary that each batch's loss draws, so that none rises unseen.", low=0
    )
    objective: str = option("kl", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)
        make_objective(self.objective)

    @cached_property
    def distance(self) -> Objective:
        """The objective itself."""
        return make_objective(self.objective)

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """See :class:`outrider.train.recipes.base.Recipe`; no more than the teacher's."""
        self._cut(target, source_of(target))
        return (target.layers,)

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> SmallDecoder:
        """See :class:`outrider.train.recipes.base.Recipe`; nothing is drawn, so the seed is not used.

        The reduced vocabulary is that of the loss: a draft model speaks the target's whole one.
        """
        files = source_of(target)
        return SmallDecoder(files, self._cut(target, files), vocabulary)

    def _cut(self, target: TargetModel, files: ModelFiles) -> Cut:
        named = self.chosen_layers
        layers = numbered(named, target.layers) if named else evenly(self.layers, target.layers)
        return checked(Cut(layers, self.inner), files)


@register
@dataclass(frozen=True)
class DraftModelRecipe(SmallDecoderOptions):
    """Options of distilling a draft model."""

    method: ClassVar[str] = "draft_model"
    product: ClassVar[Product] = DraftModelProduct()

    def loss(self, head: SmallDecoder, batch: Batch, teacher: Teacher) -> LossReport:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        return distillation_loss(head, batch, teacher, self.distance, self.others)

    def acceptance(self, head: SmallDecoder, batch: Batch, teacher: Teacher) -> Acceptance:
        """See :class:`outrider.train.recipes.base.Recipe`."""
        guesses = chain_guesses(head, batch, teacher, self.steps)
        return chain_acceptance(batch, guesses, best_tokens(batch, teacher))
