"""The loss and the acceptance of a small decoder, which reads a text as the target does, row by row."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from outrider.config import Speculation
from outrider.heads.checkpoint import TargetFacts
from outrider.train.batches import Batch, shifted
from outrider.train.objectives.base import Objective
from outrider.train.products import UNTRAINED
from outrider.train.recipes.base import LossReport
from outrider.train.smaller import SmallDecoder
from outrider.train.teacher import Teacher
from outrider.train.vocabulary import places

_MADE: Final = "made.json"


class DraftModelProduct:
    """A model in transformers' own format: both backends, and other engines, load it like any other."""

    shows_untrained = True

    def place(self, output: Path, index: int) -> Path:
        """See :class:`outrider.train.products.Product`."""
        return output

    def write(self, folder: Path, network: SmallDecoder, target: TargetFacts, told: Mapping[str, Any]) -> None:
        """See :class:`outrider.train.products.Product`."""
        network.write(folder)
        made = {"target": dataclasses.asdict(target), "cut": dataclasses.asdict(network.cut), "training": dict(told)}
        (folder / _MADE).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        """See :class:`outrider.train.products.Product`."""
        return {
            f"{method}, {UNTRAINED}": Speculation(method, options={"model": str(output / UNTRAINED)}),
            method: Speculation(method, options={"model": str(output)}),
        }


def distillation_loss(
    head: SmallDecoder, batch: Batch, teacher: Teacher, objective: Objective, weights: torch.Tensor | None = None
) -> LossReport:
    """The mean of an objective over every row of an answer.

    With a reduced vocabulary both distributions are those over its tokens alone, and the rows that an objective cannot
    learn from, those whose next token it lacks, are left out.

    Args:
        head: the decoder.
        batch: the texts.
        teacher: the target's own opinion.
        objective: what to make small.
        weights: fp32 [B, T], how much each row counts; None is all alike.
    """
    x, known = places(head.ids, batch.following(1))
    counted = batch.mask & known if objective.reads_tokens else batch.mask
    if weights is not None:
        counted = counted & (weights > 0)
    if not counted.any():
        return LossReport(batch.final.new_zeros(()), 0.0)
    z = teacher.read(head(teacher.embed(batch.tokens))[counted], head.ids)
    p = torch.softmax(teacher.logits(batch.final[counted], head.ids), -1) if objective.reads_teacher else z[:0]
    losses = objective(z, p, x[counted])
    if weights is None:
        return LossReport(losses.mean(), float(len(losses)))
    shares = weights[counted]
    weight = float(shares.sum())
    return LossReport((losses * shares).sum() / weight, weight)


@torch.no_grad()
def chain_guesses(head: SmallDecoder, batch: Batch, teacher: Teacher, depths: int) -> torch.Tensor:
    """What the decoder would draft at every start, under the text's own tokens: int64 [depths, B, T].

    The whole vocabulary is asked, as when it drafts.
    """
    guesses = torch.full_like(batch.tokens, -1)
    guesses[batch.mask] = teacher.best(head(teacher.embed(batch.tokens))[batch.mask])
    return torch.stack([shifted(guesses, depth + 1) for depth in range(depths)])


@torch.no_grad()
def right(head: SmallDecoder, batch: Batch, teacher: Teacher) -> torch.Tensor:
    """Whether the decoder's most probable next token is the target's, among the tokens of the loss: bool [B, T]."""
    found = torch.zeros_like(batch.mask)
    guessed = teacher.logits(head(teacher.embed(batch.tokens))[batch.mask], head.ids).argmax(-1)
    found[batch.mask] = guessed == teacher.logits(batch.final[batch.mask], head.ids).argmax(-1)
    return found
