"""A draft model cut out of the target: some of its layers, distilled on the target's answers.

Sources: Zhou et al., "DistillSpec", ICLR 2024 (arXiv 2310.08461): distil on the target's own texts; the best divergence
depends on the task.  Sanh et al., "DistilBERT", 2019 (arXiv 1910.01108), §3: start from some of the model's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.models.base import TargetModel
from outrider.models.loading import ModelFiles
from outrider.options import option
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.products import Product
from outrider.train.recipes._distillation import DraftModelProduct, chain_guesses, distillation_loss
from outrider.train.recipes._small_decoder import Cut, SmallDecoder, check_cut, parse_layers, source_of, spread_layers
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, best_tokens, drafted_acceptance, register


@dataclass(frozen=True)
class SmallDecoderRecipe(Recipe):
    """What to keep of the target, and how to train and evaluate it."""

    layers: int = option(4, "Layers of the target to keep, evenly spread with the first and the last.", low=1)
    chosen_layers: str = option("", "Numbers of the layers to keep, from 0, such as 0,9,29; empty spreads them.")
    inner: int = option(0, "Feed-forward channels to keep per layer, the most useful ones; 0 keeps all.", low=0)
    steps: int = option(4, "Drafting depth for held-out evaluation.", low=1, high=64)
    others: int = option(2048, "Tokens outside the reduced vocabulary to sample for each batch's loss.", low=0)
    objective: str = option("kl", "Objective, or a sum such as 0.1*cross_entropy+1.8*tv.")

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        self._cut(target, source_of(target))
        return (target.layers,)

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> SmallDecoder:
        """The decoder cut out of the target, without randomness; the reduced vocabulary is only for the loss."""
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
