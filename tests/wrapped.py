"""A target that is another one but for what a test changes."""

from __future__ import annotations

from typing import Any

import torch
from tiny import tiny_model

from outrider.models.base import TargetModel


class Wrapped:
    """Answers as its target does, whatever is asked."""

    def __init__(self, target: TargetModel) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class Jittery(Wrapped):
    """A target full of near ties, whose last digits depend on how many rows share the pass."""

    def __init__(self, jitter: float) -> None:
        super().__init__(tiny_model(0))
        self._jitter = jitter

    def forward(self, batch, cache, layers=()):  # type: ignore[no-untyped-def]
        output = self.target.forward(batch, cache, layers)
        jitter = torch.sin(torch.arange(self.vocabulary) * float(len(batch.tokens))) * self._jitter
        return output._replace(logits=(output.logits / 4).round() * 4 + jitter)
