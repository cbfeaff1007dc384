"""The training of heads that guess every depth from one row, independently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import draft_columns
from outrider.train.recipes._weighted_loss import WeightedLoss
from outrider.train.recipes.base import (
    Acceptance,
    LossReport,
    Recipe,
    best_tokens,
    drafted_acceptance,
    starts,
    target_law,
)

_RANKS: Final = 10
"""Most guesses of a head in a tree."""
_MOST_ROWS: Final = 512
"""Most rows whose logits are computed at once without gradients."""


def parallel_loss(recipe: Recipe, head: Any, batch: Batch, teacher: Teacher) -> LossReport:
    """The weighted mean of the recipe's objective over every start and depth.

    With a reduced vocabulary the teacher's distribution is over its tokens alone, and rows whose next token is not in
    it are left out.

    Args:
        recipe: has the objective and the weights of depths.
        head: rows [n, width] to logits [n, depths, v], with ``ids`` [v].
        batch: the texts.
        teacher: the target's distribution.
    """
    objective, counted = recipe.divergence, starts(batch, head.config.heads)
    chosen, ids = counted[0], _reduced(head, teacher)
    texts, rows = chosen.nonzero(as_tuple=True)
    logits, loss = head(batch.final[chosen]), WeightedLoss(recipe, counted, batch.final)
    for depth in range(len(counted)):
        x, known = draft_columns(ids, batch.following(depth + 2)[chosen])
        kept = counted[depth][chosen] & known
        if not kept.any():
            continue
        z, x = logits[kept, depth], x[kept]
        p = target_law(batch, teacher, texts[kept], rows[kept], depth, ids) if objective.reads_teacher else z[:0]
        loss.add(depth, (texts[kept], rows[kept]), objective(z, p, x), z, x)
    return loss.report()


def _reduced(head: Any, teacher: Teacher) -> torch.Tensor | None:
    """The head's draft vocabulary; None if it is the whole."""
    ids: torch.Tensor = head.ids
    return ids if len(ids) < teacher.vocabulary else None


@torch.no_grad()
def parallel_acceptance(head: Any, batch: Batch, teacher: Teacher, depths: int) -> Acceptance:
    """Held-out acceptance by depth of the chain of each head's best guess."""
    guesses = torch.full((depths, *batch.tokens.shape), -1, device=batch.tokens.device)
    for texts, rows in _pieces(batch.mask):
        best = head(batch.final[texts, rows]).argmax(-1)
        guesses[:, texts, rows] = head.ids[best].T
    return drafted_acceptance(batch, [guesses], best_tokens(batch, teacher))


def _pieces(mask: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    texts, rows = mask.nonzero(as_tuple=True)
    return list(zip(torch.split(texts, _MOST_ROWS), torch.split(rows, _MOST_ROWS), strict=True))


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
