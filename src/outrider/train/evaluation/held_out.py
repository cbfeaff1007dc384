"""Held-out evaluation: the acceptance of a head's drafts on texts it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from outrider.train.evaluation.intervals import Counts, Interval, length_interval, rate_intervals
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes.base import Acceptance, Recipe, best_tokens


@dataclass(frozen=True)
class Evaluation:
    """Held-out acceptance at one point of a training."""

    step: int
    tokens: int
    length: float
    """τ, the accepted length of a chain of all depths."""
    accepted: tuple[int, ...]
    """By depth."""
    tested: tuple[int, ...]
    """By depth."""
    accepted_by_text: tuple[tuple[int, ...], ...] = ()
    """By text and depth; empty in a state of an earlier version."""
    tested_by_text: tuple[tuple[int, ...], ...] = ()
    """By text and depth."""

    @classmethod
    def of(cls, step: int, tokens: int, acceptance: Acceptance) -> Evaluation:
        """The evaluation of an acceptance."""
        totals = (tuple(acceptance.accepted.tolist()), tuple(acceptance.tested.tolist()))
        by_text = (acceptance.accepted_by_text.tolist(), acceptance.tested_by_text.tolist())
        return cls(
            step, tokens, acceptance.accepted_length, *totals, *(tuple(map(tuple, counts)) for counts in by_text)
        )

    @property
    def texts(self) -> int:
        """The number of held-out texts."""
        return len(self.accepted_by_text)

    @property
    def rates(self) -> list[float]:
        """α by position."""
        return [a / max(1, t) for a, t in zip(self.accepted, self.tested, strict=True)]

    @cached_property
    def counts(self) -> Counts:
        """The counts for intervals."""
        return Counts.of(self.accepted_by_text, self.tested_by_text)

    @cached_property
    def length_interval(self) -> Interval | None:
        """The confidence interval of τ; None with too few texts."""
        return length_interval(self.counts)

    @cached_property
    def rate_intervals(self) -> list[Interval] | None:
        """The confidence interval of α at each position; None with too few texts."""
        return rate_intervals(self.counts)

    def summary(self) -> dict[str, Any]:
        """The evaluation as a JSON object."""
        ends = self.length_interval
        return {
            "step": self.step,
            "tokens": self.tokens,
            "length": self.length,
            "length_interval": None if ends is None else [ends.low, ends.high],
            "accepted": list(self.accepted),
            "tested": list(self.tested),
        }

    def __str__(self) -> str:
        ends = f" ({self.length_interval})" if self.length_interval else ""
        by_position = " ".join(f"{rate:.3f}" for rate in self.rates)
        return f"{self.tokens:>12,} tokens · held-out τ {self.length:.3f}{ends} · α by position {by_position}"


def with_best_tokens(batches: Sequence[Batch], teacher: Teacher) -> list[Batch]:
    """Batches with the target's most probable token of every row, so that it is computed only once."""
    return [replace(batch, best=best_tokens(batch, teacher)) for batch in batches]


@torch.no_grad()
def evaluate(recipe: Recipe, head: Any, batches: Sequence[Batch], teacher: Teacher) -> Acceptance:
    """Held-out acceptance of a head over all batches."""
    return sum(
        (recipe.acceptance(head, batch, teacher) for batch in batches[1:]), recipe.acceptance(head, batches[0], teacher)
    )
