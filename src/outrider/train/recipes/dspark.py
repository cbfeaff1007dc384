"""DSpark: total variation and cross-entropy on blocks, and a confidence that learns the acceptance rate.

Source: DeepSeek-AI and Peking University 2026 (arXiv 2607.05147, §3.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from outrider.errors import ConfigError
from outrider.heads.dspark import CORRECTIONS, DSparkConfig, DSparkHead
from outrider.models.base import TargetModel
from outrider.options import option
from outrider.train.features.batches import Batch, shifted
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import draft_columns
from outrider.train.recipes._blocks import choose_starts, corrected, draft_blocks
from outrider.train.recipes._calibration import Confidences, cross_validated_errors, scaling_temperatures
from outrider.train.recipes._new_head import block_shape, draft_ids, new_head
from outrider.train.recipes._weighted_loss import NAMES, WeightedLoss, Weights
from outrider.train.recipes.base import (
    Acceptance,
    LossReport,
    Recipe,
    best_tokens,
    drafted_acceptance,
    drafted_tokens,
    register,
    starts,
    target_law,
)


@register
@dataclass(frozen=True)
class DSparkRecipe(Recipe):
    """Options of training a DSpark head."""

    method: ClassVar[str] = "dspark"
    confidence: ClassVar[bool] = True
    draft_from_anchor: ClassVar[bool] = True

    slots: int = option(7, "Tokens of a block.", low=1, high=32)
    blocks: int = option(2, "Decoder layers.", low=1, high=16)
    anchors: int = option(24, "Blocks to draft per text and step.", low=1, high=512)
    correction: str = option("markov", "Correction by the token before: independent, markov, gated or rnn.")
    rank: int = option(64, "Rank of the correction.", low=1, high=4096)
    weights: str = option("exponential", f"Loss weights of drafted tokens: {NAMES}.")
    scale: float = option(4.0, "Slots after which an exponential weight has fallen to 1/e.", low=0.1, high=1000.0)
    decay: float = option(0.8, "Geometric loss weight of each slot relative to the one before.", low=0.0, high=1.0)
    smoothing: float = option(0.5, "Smoothing of D-PACE's weights.", low=0.0, high=1.0)
    inner: int = option(0, "Width of the feed-forward parts; 0 is about 2.7 times the target's.", low=0)
    mask_id: int = option(0, "Token whose embedding fills the slots to be drafted.", low=0)
    objective: str = option("0.1*cross_entropy+1.8*tv", "Objective; the paper's is 0.1 CE + 0.9 L1, and L1 is 2 TV.")

    def __post_init__(self) -> None:
        super().__post_init__()
        Weights.of(self)
        if self.correction not in CORRECTIONS:
            known = ", ".join(CORRECTIONS)
            raise ConfigError(f"{self.method}: there is no correction {self.correction!r}; there are: {known}")

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """Five layers, evenly from the second to the fourth from the end."""
        first, last = max(0, min(1, target.layers - 1)), max(0, target.layers - 4)
        return tuple(sorted({first + (2 * (last - first) * share + 4) // 8 for share in range(5)}))

    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> DSparkHead:
        if self.mask_id >= target.vocabulary:
            raise ConfigError(
                f"{self.method}: mask_id must be below the target's {target.vocabulary} tokens, not {self.mask_id}"
            )
        ids = draft_ids(target, vocabulary)
        config = DSparkConfig(
            block=block_shape(target, self.inner, head_norms=True),
            hidden_layers=self.layers_read(target),
            blocks=self.blocks,
            slots=self.slots,
            mask_id=self.mask_id,
            vocabulary=len(ids),
            target_vocabulary=target.vocabulary,
            correction=self.correction,
            rank=self.rank,
            draft_from_anchor=self.draft_from_anchor,
            confidence=self.confidence,
            confidence_reads_correction=self.confidence and self.correction != "independent",
        )
        return new_head(DSparkHead, config, seed, lambda head: head.begin(ids, target.unembed_rows(ids)))

    def loss(self, head: DSparkHead, batch: Batch, teacher: Teacher) -> LossReport:
        """The objective of every slot of blocks at random starts, and the loss of the confidence if there is one."""
        drafted = draft_blocks(head, batch, teacher, *choose_starts(batch, self.anchors))
        logits, texts = corrected(head, drafted), drafted.texts
        counted = starts(batch, head.config.drafts)[:, texts, drafted.rows] & drafted.real
        loss = WeightedLoss(self, counted, batch.final)
        for slot in range(head.config.drafts):
            x, known = draft_columns(head.ids, batch.following(slot + 2)[texts, drafted.rows])
            kept = counted[slot] & known
            if not kept.any():
                continue
            p = target_law(batch, teacher, texts[kept], drafted.rows[kept], slot, head.ids)
            z = logits[:, :, slot][kept]
            losses = self.divergence(z, p, x[kept])
            if head.config.confidence:
                guess = head.confidence(drafted.previous[:, :, slot][kept], drafted.slots.hidden[:, :, slot][kept])
                losses = losses + binary_cross_entropy_with_logits(guess, _accepted(z, p), reduction="none")
            loss.add(slot, kept, losses, z, x[kept])
        return loss.report()

    @torch.no_grad()
    def acceptance(self, head: DSparkHead, batch: Batch, teacher: Teacher) -> Acceptance:
        drafted = draft_blocks(head, batch, teacher, *choose_starts(batch, self.anchors))
        guesses = torch.full((head.config.drafts, *batch.tokens.shape), -1, device=batch.tokens.device)
        at = torch.zeros_like(batch.mask)
        texts, rows = drafted.texts[drafted.real], drafted.rows[drafted.real]
        at[texts, rows] = True
        guesses[:, texts, rows] = drafted_tokens(head, corrected(head, drafted))[drafted.real].T
        return drafted_acceptance(batch, [guesses], best_tokens(batch, teacher), at)

    def calibrate(self, head: DSparkHead, batches: Sequence[Batch], teacher: Teacher) -> Mapping[str, float]:
        """Set the temperatures of the confidence, and return its calibration error before and after."""
        if not head.config.confidence:
            return {}
        parts = [_confidences(head, batch, teacher, self.anchors) for batch in batches]
        logits, right = (torch.cat(column) for column in zip(*parts, strict=True))
        if not len(logits):  # every text is shorter than a block
            return {}
        head.config = dataclasses.replace(head.config, temperatures=scaling_temperatures(logits, right))
        return cross_validated_errors(parts)


@torch.no_grad()
def _confidences(head: DSparkHead, batch: Batch, teacher: Teacher, most: int) -> Confidences:
    """Confidences in the slots of whole blocks, and whether the target accepts each slot's draft."""
    drafted = draft_blocks(head, batch, teacher, *choose_starts(batch, most))
    guesses, texts = drafted_tokens(head, corrected(head, drafted)), drafted.texts
    depths = range(1, head.config.drafts + 1)
    whole = drafted.real & starts(batch, head.config.drafts)[-1][texts, drafted.rows]
    best = best_tokens(batch, teacher)
    truth = torch.stack([shifted(best, depth)[texts, drafted.rows] for depth in depths], -1)
    text = torch.stack([batch.following(depth + 1)[texts, drafted.rows] for depth in depths], -1)
    # After a token that is not the target's best, the text is another one.
    kept = whole & (truth == text)[..., :-1].all(-1)
    logits = head.confidence(drafted.previous, drafted.slots.hidden)[kept]
    return logits.cpu(), (guesses == truth)[kept].cumprod(-1).bool().cpu()


@torch.no_grad()
def _accepted(z: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The probability that a draft from softmax(z) is accepted: Σ min(p, q)."""
    return torch.minimum(p, torch.softmax(z.float(), -1)).sum(-1)
