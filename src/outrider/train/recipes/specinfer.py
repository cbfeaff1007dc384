"""SpecInfer's boost-tuned draft models: each is trained on what the earlier ones miss.

Source: Miao et al., "SpecInfer", ASPLOS 2024 (arXiv 2305.09781), §3.2.  The paper removes whole prompts that a member
answers like the target; here single rows lose weight, so that every text helps every member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from outrider.config import Speculation
from outrider.drafters.specinfer import members_in
from outrider.options import option
from outrider.sampling.noise import MOST_SOURCES
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.products import UNTRAINED, Product
from outrider.train.recipes._distillation import DraftModelProduct, agrees_with_target, chain_guesses, distillation_loss
from outrider.train.recipes._small_decoder import SmallDecoder
from outrider.train.recipes.base import Acceptance, LossReport, best_tokens, drafted_acceptance, register
from outrider.train.recipes.draft_model import DraftModelRecipe, SmallDecoderRecipe


class MembersProduct(DraftModelProduct):
    """A folder of draft models, ``1``, ``2`` and so on, whose merged tree is drafted."""

    def place(self, output: Path, index: int) -> Path:
        """A numbered folder for each member."""
        return output / str(index + 1)

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        """The untrained model, each member alone, and all together."""
        single = DraftModelRecipe.method
        members = members_in(output)
        alone = {f"member {Path(member).name}": member for member in members}
        paths = {f"{single}, {UNTRAINED}": str(output / UNTRAINED)} | alone
        arms = {name: Speculation(single).drafting_with(path, "the draft model") for name, path in paths.items()}
        return arms | {method: Speculation(method).drafting_with(members, "the draft models")}


@register
@dataclass(frozen=True)
class SpecInferRecipe(SmallDecoderRecipe):
    """Options of training draft models that complement each other."""

    method: ClassVar[str] = "specinfer"
    product: ClassVar[Product] = MembersProduct()

    members: int = option(3, "Draft models to train, one after another.", low=1, high=MOST_SOURCES)
    easy: float = option(0.2, "Weight of rows that an earlier member gets right; others weigh 1.", low=0.0, high=1.0)
    _earlier: ClassVar[tuple[SmallDecoder, ...]] = ()

    def next_stage(self, trained: Sequence[SmallDecoder]) -> SpecInferRecipe | None:
        """The next member; it knows the earlier ones."""
        if len(trained) >= self.members:
            return None
        stage = dataclasses.replace(self)
        vars(stage)["_earlier"] = tuple(trained)  # not an option, so not part of a state's identity
        return stage

    def loss(self, head: SmallDecoder, batch: Batch, teacher: Teacher) -> LossReport:
        """The objective of every row of an answer, with less weight if an earlier member is right."""
        weights = None
        if self._earlier:
            known = torch.stack([agrees_with_target(member, batch, teacher) for member in self._earlier]).any(0)
            weights = torch.where(known, self.easy, 1.0)
        return distillation_loss(head, batch, teacher, self.divergence, self.others, weights)

    def acceptance(self, head: SmallDecoder, batch: Batch, teacher: Teacher) -> Acceptance:
        """Held-out acceptance of the merged tree of all members so far."""
        return self._merged((*self._earlier, head), batch, teacher)

    def acceptance_by_member(
        self, heads: Sequence[SmallDecoder], batches: Sequence[Batch], teacher: Teacher
    ) -> Mapping[str, Acceptance]:
        """Held-out acceptance of each member alone, and of the merged tree."""
        chosen = {f"member {number + 1}": (head,) for number, head in enumerate(heads)} | {"merged": tuple(heads)}
        parts = {name: [self._merged(some, batch, teacher) for batch in batches] for name, some in chosen.items()}
        return {name: sum(part[1:], part[0]) for name, part in parts.items()}

    def _merged(self, heads: Sequence[SmallDecoder], batch: Batch, teacher: Teacher) -> Acceptance:
        guesses = [chain_guesses(head, batch, teacher, self.steps) for head in heads]
        return drafted_acceptance(batch, guesses, best_tokens(batch, teacher))
