"""Probability distributions of logits over temperature, and their truncation by min_p, top_k and top_p.

Every filter keeps a prefix of the tokens ordered by (probability descending, id ascending).  So one sort of a few
candidates serves all filters, and the order depends only on the row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from outrider.law import Law, Laws

_FIRST_GUESS: Final = 256
_GROWTH: Final = 8


@dataclass(frozen=True)
class Truncation:
    """Which tokens may be chosen, in the order min_p, top_k, top_p; see :func:`surviving_ids`."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def keeps_all(self) -> bool:
        """Whether truncation is off."""
        return self.top_k == 0 and self.top_p == 1.0 and self.min_p == 0.0


KEEP_ALL: Final = Truncation()


def softmax(scaled: torch.Tensor) -> Laws:
    """Compute each row's distribution from logits over temperature, [rows, vocabulary]; see :func:`undefined`."""
    laws: Laws = torch.softmax(scaled, dim=1, dtype=torch.float64).cpu().numpy()
    return laws


def undefined(law: Law) -> bool:
    """Whether every entry is NaN, because the row held NaN or infinity or banned every token."""
    return math.isnan(law[0])


def surviving_ids(scaled: torch.Tensor, *, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Apply min_p, then top_k, then top_p: int64 ids, ascending; never empty if one entry is finite.

    Args:
        scaled: float32 [vocabulary], logits over temperature; minus infinity marks a banned token.
        top_k: 0 keeps all.
        top_p: applied to the renormalized rest after min_p and top_k; 1 keeps all.
        min_p: share of the most probable token's probability; 0 keeps all.
    """
    candidates = _candidates(scaled, top_k=top_k, top_p=top_p, min_p=min_p)
    values, order = torch.sort(scaled[candidates], descending=True, stable=True)
    keep = len(values) if top_k == 0 else min(top_k, len(values))
    if min_p > 0.0:
        keep = min(keep, int((values >= values[0] + math.log(min_p)).sum()))
    keep = min(keep, max(1, int(torch.isfinite(values).sum())))
    if top_p < 1.0:
        everything = scaled if top_k == 0 and min_p == 0.0 else values[:keep]
        mass = torch.exp(values[:keep].double() - torch.logsumexp(everything.double(), 0))
        before = torch.cumsum(mass, 0) - mass
        keep = max(1, int((before < top_p).sum()))
    return torch.sort(candidates[order[:keep]]).values


def _candidates(scaled: torch.Tensor, *, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """A superset of the surviving ids, in ascending order, that includes all ties."""
    vocabulary = scaled.shape[0]
    if min_p > 0.0:
        return torch.nonzero(scaled >= scaled.max() + math.log(min_p)).squeeze(1)
    if 0 < top_k < vocabulary:
        return _at_least_the(top_k, scaled)
    if top_p < 1.0:
        total = torch.logsumexp(scaled.double(), 0)
        count = _FIRST_GUESS
        while count < vocabulary:
            best = torch.topk(scaled, count).values.double()
            if float(torch.exp(best - total).sum()) > top_p:
                return _at_least_the(count, scaled)
            count *= _GROWTH
    return torch.arange(vocabulary, device=scaled.device)


def _at_least_the(count: int, scaled: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(scaled >= torch.topk(scaled, count).values[-1]).squeeze(1)
