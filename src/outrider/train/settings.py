"""Settings of a training run, for every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

from outrider.errors import ConfigError
from outrider.options import check_options, option

AUTO: Final = "auto"
PRECISIONS: Final = ("fp32", "bf16")
BETAS: Final = (0.9, 0.95)
"""AdamW's, for every method."""


@dataclass(frozen=True)
class Settings:
    """Options of the loop."""

    method: ClassVar[str] = "train"
    """The start of messages about an option."""

    tokens: int = option(1_000_000, "Answer tokens to train on; repeats count.", low=1)
    learning_rate: float = option(1e-3, "Peak learning rate.", low=0.0)
    warm_up: float = option(0.04, "Share of the tokens for learning rate warm-up.", low=0.0, high=1.0)
    weight_decay: float = option(0.0, "Weight decay of AdamW, for matrices.", low=0.0)
    clip: float = option(1.0, "Maximum gradient norm; larger gradients are clipped.", low=0.0)
    accumulate: int = option(1, "Batches per step and worker (gradient accumulation).", low=1)
    start_from: str = option("", "Start from the head of the same kind in this folder, with its draft vocabulary.")
    seed: int = option(0, "Seed of the order of texts and of everything random.")
    precision: str = option(AUTO, "fp32 or bf16; auto times both for five seconds and takes the faster.")
    judgements: int = option(12, "Number of held-out evaluations, at least 4.", low=4)
    patience: int = option(
        4,
        "Stop after this many evaluations in a row that are significantly worse than the best (95 % interval of the "
        "difference below 0); 0 never stops early.",
        low=0,
    )
    save_seconds: float = option(30.0, "Save the state after this many seconds of work.", low=0.0, high=60.0)

    def __post_init__(self) -> None:
        check_options(self)
        if self.precision not in (AUTO, *PRECISIONS):
            known = ", ".join((AUTO, *PRECISIONS))
            raise ConfigError(f"train: precision must be one of {known}, not {self.precision!r}")

    def optimiser(self, weights: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW; weight decay applies to matrices only."""
        groups = [
            {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=BETAS, fused=True)

    def rate_at(self, tokens: int) -> float:
        """The learning rate at a token count: linear warm-up, then a half cosine down."""
        share = min(1.0, tokens / self.tokens)
        if share < self.warm_up:
            return self.learning_rate * share / self.warm_up
        down = (share - self.warm_up) / max(1e-9, 1.0 - self.warm_up)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * down))

    def evaluated_at(self) -> list[int]:
        """Token counts at which to evaluate the head: halvings of the total, for the curve, and even steps."""
        halvings = max(4, self.judgements // 2)
        even = self.judgements - halvings
        points = {self.tokens >> halving for halving in range(halvings)}
        return sorted((points | {self.tokens * step // (even + 1) for step in range(even + 1)}) - {0})
