"""Distillation of a small decoder: its loss, its acceptance and its files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from outrider.config import Speculation
from outrider.heads.checkpoint import TargetFacts
from outrider.train.features.batches import Batch, shifted
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import draft_columns
from outrider.train.objectives import Objective
from outrider.train.products import UNTRAINED, Product
from outrider.train.recipes._small_decoder import SmallDecoder
from outrider.train.recipes.base import LossReport

_MADE: Final = "made.json"


class DraftModelProduct(Product):
    """A model in transformers' format, which both backends and other engines load."""

    shows_untrained = True
    starts_from_heads = False

    def write(self, folder: Path, network: SmallDecoder, target: TargetFacts, made: Mapping[str, Any]) -> None:
        network.write(folder)
        facts = {"target": dataclasses.asdict(target), "cut": dataclasses.asdict(network.cut), "training": dict(made)}
        (folder / _MADE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    def arms(self, method: str, output: Path) -> dict[str, Speculation]:
        return {
            f"{method}, {UNTRAINED}": Speculation(method).drafting_with(output / UNTRAINED, "the draft model"),
            method: Speculation(method).drafting_with(output, "the draft model"),
        }


class Columns(NamedTuple):
    """The tokens in the loss of one batch."""

    ids: torch.Tensor | None
    """int64 [v + drawn]: the reduced vocabulary, then the drawn tokens; None is the whole vocabulary."""
    added: torch.Tensor | float
    """fp32 [v + drawn], added to the logits, so that a drawn token also counts for those that were not drawn."""


def columns(vocabulary: torch.Tensor | None, batch: Batch, teacher: Teacher, others: int) -> Columns:
    """The reduced vocabulary, and other tokens drawn for each batch.

    Without them, the logits of tokens outside the loss could rise until they are drafted.  So the sum over them is
    estimated from a uniform sample (Bengio and Senécal, "Adaptive importance sampling", 2008).

    Args:
        vocabulary: int64 [v], ascending; None is the whole.
        batch: has the generator.
        teacher: has the size of the vocabulary.
        others: number of tokens to draw.
    """
    if vocabulary is None:
        return Columns(None, 0.0)
    beside = torch.ones(teacher.vocabulary, dtype=torch.bool)
    beside[vocabulary.cpu()] = False
    left = beside.nonzero().squeeze(1)
    drawn = left[torch.randperm(len(left), generator=batch.generator())[:others]].to(vocabulary.device)
    added = torch.zeros(len(vocabulary) + len(drawn), device=vocabulary.device)
    added[len(vocabulary) :] = math.log(len(left) / max(1, len(drawn)))
    return Columns(torch.cat((vocabulary, drawn)), added)


def distillation_loss(
    head: SmallDecoder,
    batch: Batch,
    teacher: Teacher,
    objective: Objective,
    others: int,
    weights: torch.Tensor | None = None,
) -> LossReport:
    """The mean of an objective over every row of an answer.

    With a reduced vocabulary both distributions are over :func:`columns`.  If the objective reads the text's own token,
    rows whose next token is not in the vocabulary are left out.

    Args:
        head: the decoder.
        batch: the texts.
        teacher: the target's distribution.
        objective: the objective to minimise.
        others: tokens drawn in addition to a reduced vocabulary.
        weights: fp32 [B, T], weights of rows; None weighs all equally.
    """
    x, known = draft_columns(head.ids, batch.following(1))
    counted = batch.mask & known if objective.reads_tokens else batch.mask
    shares = torch.ones_like(batch.mask, dtype=torch.float32) if weights is None else weights
    counted = counted & (shares > 0)
    if not counted.any():
        return LossReport(batch.final.new_zeros(()), 0.0)
    ids, added = columns(head.ids, batch, teacher, others)
    z = teacher.read(head(teacher.embed(batch.tokens))[counted], ids) + added
    p = torch.softmax(teacher.logits(batch.final[counted], ids) + added, -1) if objective.reads_teacher else z[:0]
    losses, shares = objective(z, p, x[counted]), shares[counted]
    weight = float(shares.sum())
    return LossReport((losses * shares).sum() / weight, weight)


@torch.no_grad()
def chain_guesses(head: SmallDecoder, batch: Batch, teacher: Teacher, depths: int) -> torch.Tensor:
    """The decoder's drafts at every start, after the text's own tokens: int64 [depths, B, T]."""
    guesses = torch.full_like(batch.tokens, -1)
    guesses[batch.mask] = teacher.best(head(teacher.embed(batch.tokens))[batch.mask])
    return torch.stack([shifted(guesses, depth + 1) for depth in range(depths)])


@torch.no_grad()
def agrees_with_target(head: SmallDecoder, batch: Batch, teacher: Teacher) -> torch.Tensor:
    """Whether the most probable tokens of decoder and target agree, among the tokens of the loss: bool [B, T]."""
    agrees = torch.zeros_like(batch.mask)
    guessed = teacher.logits(head(teacher.embed(batch.tokens))[batch.mask], head.ids).argmax(-1)
    agrees[batch.mask] = guessed == teacher.logits(batch.final[batch.mask], head.ids).argmax(-1)
    return agrees
