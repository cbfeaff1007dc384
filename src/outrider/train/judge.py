"""How a head is judged: by what it would have accepted on texts it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from outrider.train.batches import Batch
from outrider.train.recipes.base import Acceptance, Recipe, best_tokens
from outrider.train.teacher import Teacher


@dataclass(frozen=True)
class Judgement:
    """Held-out acceptance after so many tokens."""

    step: int
    tokens: int
    length: float
    """τ, the accepted length of a chain of all depths."""
    accepted: tuple[int, ...]
    """By depth."""
    tested: tuple[int, ...]
    """By depth."""

    @property
    def rates(self) -> list[float]:
        """Acceptance by position."""
        return [a / max(1, t) for a, t in zip(self.accepted, self.tested, strict=True)]

    def __str__(self) -> str:
        """One line to print."""
        by_position = " ".join(f"{rate:.3f}" for rate in self.rates)
        return f"{self.tokens:>12,} tokens · held-out τ {self.length:.3f} · α by position {by_position}"


def prepared(batches: Sequence[Batch], teacher: Teacher) -> list[Batch]:
    """Held-out batches with the target's own opinion of every row, which is then asked only once."""
    return [replace(batch, best=best_tokens(batch, teacher)) for batch in batches]


@torch.no_grad()
def judge(recipe: Recipe, head: Any, batches: Sequence[Batch], teacher: Teacher) -> Acceptance:
    """Held-out acceptance of a head, all batches together."""
    return sum(
        (recipe.acceptance(head, batch, teacher) for batch in batches[1:]), recipe.acceptance(head, batches[0], teacher)
    )
