"""Training-time test: unrolled steps of a head, each reading the output of the one before (EAGLE-3, 2025, §3.2).

Row t of step s is the s-th draft after token t + 1.  It sees the first step's keys of rows 0 … t, which come from the
target's own features as in drafting, and its own keys of the steps in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes.base import Acceptance, best_tokens, drafted_acceptance, drafted_tokens


@dataclass(eq=False)
class _Layer:
    """Keys and values of one block: those of the first step, and of each later step."""

    keys: torch.Tensor
    values: torch.Tensor
    own_keys: list[torch.Tensor] = field(default_factory=list)
    own_values: list[torch.Tensor] = field(default_factory=list)


class _Keys:
    """The :data:`outrider.heads.blocks.Attend` of an unrolled text."""

    def __init__(self) -> None:
        self._layers: list[_Layer] = []
        self._turn = 0
        self._first = True

    def next_step(self) -> None:
        """Start the next step, again from the first block."""
        self._turn, self._first = 0, False

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attend to the first step's keys up to a row's own, and to the row's keys of later steps."""
        group = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, 1) for part in (key, value))
        if self._first:
            self._layers.append(_Layer(key, value))
        layer = self._layers[self._turn]
        if not self._first:
            layer.own_keys.append(key)
            layer.own_values.append(value)
        self._turn += 1
        return _mix(query, layer, scaling)


def _mix(query: torch.Tensor, layer: _Layer, scaling: float) -> torch.Tensor:
    rows = query.shape[2]
    later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ layer.keys.transpose(-1, -2)).masked_fill(later, -torch.inf)
    own = [(query * key).sum(-1, keepdim=True) for key in layer.own_keys]
    shares = torch.softmax(torch.cat([scores, *own], -1) * scaling, -1)
    mixed = shares[..., :rows] @ layer.values
    for place, value in enumerate(layer.own_values):
        mixed = mixed + shares[..., rows + place, None] * value
    return mixed.transpose(1, 2)


def unroll(
    head: Any, batch: Batch, teacher: Teacher, steps: int, noise: torch.Tensor | float = 0.0
) -> Iterator[torch.Tensor]:
    """The output of each step, [B, T, width].

    Args:
        head: an EAGLE network.
        batch: the texts.
        teacher: has the embeddings.
        steps: number of steps.
        noise: added to the first step's features.
    """
    keys = _Keys()
    features = head.fuse([batch.features[layer] for layer in head.config.hidden_layers]) + noise
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)
    for step in range(steps):
        features = head(teacher.embed(batch.following(1 + step)), features, positions + step, keys.attend)
        yield features
        keys.next_step()


@torch.no_grad()
def unrolled_acceptance(head: Any, batch: Batch, teacher: Teacher, steps: int) -> Acceptance:
    """Held-out acceptance by depth of the chain of each step's best guess."""
    guesses = torch.full((steps, *batch.tokens.shape), -1, device=batch.tokens.device)
    for depth, answers in enumerate(unroll(head, batch, teacher, steps)):
        guesses[depth][batch.mask] = drafted_tokens(head, head.logits(answers[batch.mask], teacher.logits))
    return drafted_acceptance(batch, [guesses], best_tokens(batch, teacher))
