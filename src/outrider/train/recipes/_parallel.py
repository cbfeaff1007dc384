"""Training of heads that guess every depth from one row, each without seeing the others' guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import places
from outrider.train.objectives.base import Objective
from outrider.train.recipes.base import Acceptance, LossReport, best_tokens, chain_acceptance, starts

_RANKS: Final = 10
"""Guesses of a head that a tree may use."""
_JUDGED: Final = 512
"""Rows whose logits are made at once where no gradient is wanted."""


def parallel_loss(head: Any, batch: Batch, teacher: Teacher, objective: Objective, weights: torch.Tensor) -> LossReport:
    """The weighted mean of an objective over every start and depth.

    With a reduced vocabulary the teacher's distribution is that over its tokens alone, and rows whose next token
    it lacks are left out.

    Args:
        head: rows [n, width] to logits [n, depths, v], with ``ids`` [v].
        batch: the texts.
        teacher: the target's own opinion.
        objective: what to make small.
        weights: fp32 [depths].
    """
    counted = starts(batch, len(weights))
    chosen, ids = counted[0], _reduced(head, teacher)
    logits = head(batch.final[chosen])
    parts, total, weight = {}, batch.final.new_zeros(()), 0.0
    for depth, share in enumerate(weights.tolist()):
        x, known = places(ids, batch.following(depth + 2)[chosen])
        kept = counted[depth][chosen] & known
        if not (count := int(kept.sum())):
            continue
        p = _teacher_rows(batch, teacher, ids, depth, chosen, kept) if objective.reads_teacher else x[:0]
        losses = objective(logits[kept, depth], p, x[kept])
        parts[f"loss_{depth + 1}"] = losses.detach().mean()
        total = total + share * losses.sum()
        weight += share * count
    return LossReport(total / max(weight, 1e-9), weight, parts)


def _reduced(head: Any, teacher: Teacher) -> torch.Tensor | None:
    """The head's draft vocabulary, or None where it is the whole."""
    ids: torch.Tensor = head.ids
    return ids if len(ids) < teacher.vocabulary else None


def _teacher_rows(
    batch: Batch, teacher: Teacher, ids: torch.Tensor | None, depth: int, chosen: torch.Tensor, kept: torch.Tensor
) -> torch.Tensor:
    """The teacher's distribution of the token each kept start guesses at a depth: fp32 [kept, v]."""
    texts, rows = (where[kept] for where in chosen.nonzero(as_tuple=True))
    return torch.softmax(teacher.logits(batch.final[texts, rows + 1 + depth], ids), -1)


@torch.no_grad()
def parallel_acceptance(head: Any, batch: Batch, teacher: Teacher, depths: int) -> Acceptance:
    """Held-out acceptance by depth of the chain of each head's best guess."""
    guesses = torch.full((depths, *batch.tokens.shape), -1, device=batch.tokens.device)
    for texts, rows in _pieces(batch.mask):
        best = head(batch.final[texts, rows]).argmax(-1)
        guesses[:, texts, rows] = head.ids[best].T
    return chain_acceptance(batch, guesses, best_tokens(batch, teacher))


def _pieces(mask: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    texts, rows = mask.nonzero(as_tuple=True)
    return list(zip(torch.split(texts, _JUDGED), torch.split(rows, _JUDGED), strict=True))


@torch.no_grad()
def parallel_chances(head: Any, batches: Sequence[Batch], depths: int) -> tuple[tuple[float, ...], ...]:
    """How often each head's guess of each rank was the text's own token (Cai et al. 2024, §2.3): [depths][ranks]."""
    hits = torch.zeros(depths, min(_RANKS, len(head.ids)))
    seen = torch.zeros(depths)
    for batch in batches:
        counted, hits, seen = starts(batch, depths), hits.to(batch.final), seen.to(batch.final)
        truth = torch.stack([batch.following(depth + 2) for depth in range(depths)])
        for texts, rows in _pieces(batch.mask):
            ranked = head.ids[head(batch.final[texts, rows]).topk(hits.shape[1]).indices]
            right = ranked.transpose(0, 1) == truth[:, texts, rows, None]
            counts = counted[:, texts, rows]
            hits += (right & counts[:, :, None]).sum(1)
            seen += counts.sum(1)
    return tuple(tuple(round(chance, 4) for chance in row) for row in (hits / seen.clamp(min=1)[:, None]).tolist())
