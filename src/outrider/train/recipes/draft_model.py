"""A draft model made out of the target: some of its layers, distilled on the target's own answers.

Source: Zhou et al., "DistillSpec", ICLR 2024 (arXiv 2310.08461): distil on texts of the model itself; which divergence
is best depends on the task.  That a shallow part of a model is a cheap beginning is older: Sanh et al., "DistilBERT",
2019 (arXiv 1910.01108), §3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from outrider.options import option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.products import Product
from outrider.train.recipes._distillation import DraftModelProduct, chain_guesses, distillation_loss
from outrider.train.recipes._small_decoder import Cut, SmallDecoder, check_cut, parse_layers, source_of, spread_layers
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, best_tokens, drafted_acceptance, register

if TYPE_CHECKING:
    from outrider.models.base import TargetModel
    from outrider.models.loading import ModelFiles


@dataclass(frozen=True)
class SmallDecoderRecipe(Recipe):
    """What is kept of the target, and how that is trained and evaluated."""

    layers: int = option(4, "Layers of the target kept, evenly spread with the first and the last.", low=1)
    chosen_layers: str = option("", "Which layers are kept, by their numbers from 0, such as 0,9,29; empty spreads.")
    inner: int = option(0, "Channels kept of each feed-forward part, the most useful; 0 is all.", low=0)
    steps: int = option(4, "Drafting depth that it is judged by.", low=1, high=64)
    others: int = option(
        2048, "Tokens beside the reduced vocabulary that each batch's loss draws, so that none rises unseen.", low=0
    )
    objective: str = option("kl", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """The rows after the final norm alone, which the teacher reads."""
        self._cut(target, source_of(target))
        return (target.layers,)

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> SmallDecoder:
        """The decoder cut out of the target; nothing is random, so the seed is not used.

        The reduced vocabulary is that of the loss: a draft model drafts from the target's whole one.
        """
        files = source_of(target)
        return SmallDecoder(files, self._cut(target, files), vocabulary)

    def _cut(self, target: TargetModel, files: ModelFiles) -> Cut:
        named = self.chosen_layers
        layers = parse_layers(named, target.layers) if named else spread_layers(self.layers, target.layers)
        cut = Cut(layers, self.inner)
        check_cut(cut, files)
        return cut


@register
@dataclass(frozen=True)
class DraftModelRecipe(SmallDecoderRecipe):
    """Options of distilling a draft model."""

    method: ClassVar[str] = "draft_model"
    product: ClassVar[Product] = DraftModelProduct()

    def loss(self, head: SmallDecoder, batch: Batch, teacher: Teacher) -> LossReport:
        """The objective of every row of an answer."""
        return distillation_loss(head, batch, teacher, self.divergence, self.others)

    def acceptance(self, head: SmallDecoder, batch: Batch, teacher: Teacher) -> Acceptance:
        """Held-out acceptance of the chain of best guesses."""
        guesses = chain_guesses(head, batch, teacher, self.steps)
        return drafted_acceptance(batch, [guesses], best_tokens(batch, teacher))
