"""Padded batches of captured texts, in an order that a seed fixes and a position resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch


class Captured(Protocol):
    """A text the target wrote, with hidden rows of the pass that read it."""

    @property
    def tokens(self) -> torch.Tensor | Sequence[int]:
        """Token ids, prompt first: [T]."""
        ...

    @property
    def answer_start(self) -> int:
        """Index of the first token of the answer."""
        ...

    @property
    def features(self) -> Mapping[int, torch.Tensor]:
        """Hidden rows [T, width] of each captured layer; the highest layer is the rows the LM head reads."""
        ...


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts of one step, padded to the longest: ``B`` texts of ``T`` positions.

    Words: row t is what the target computed of the text up to token t, so its next token is t + 1.
    """

    tokens: torch.Tensor
    """int64 [B, T]; past a text's end they mean nothing."""
    mask: torch.Tensor
    """bool [B, T]: rows that count, those whose next token is part of the answer."""
    features: Mapping[int, torch.Tensor]
    """fp32 [B, T, width] of each layer, zero past a text's end; layer i is the output of block i."""
    lengths: torch.Tensor
    """int64 [B]: tokens of each text."""
    seed: int = 0
    """Whatever a recipe draws for this batch it draws from a generator seeded with this."""
    best: torch.Tensor | None = None
    """int64 [B, T]: the target's most probable next token of every row, where it has been computed already."""

    @property
    def final(self) -> torch.Tensor:
        """Rows after the final norm, which the LM head reads: fp32 [B, T, width]."""
        return self.features[max(self.features)]

    def following(self, by: int) -> torch.Tensor:
        """The token ``by`` places after each row's own: int64 [B, T], 0 where the batch ends."""
        return shifted(self.tokens, by)

    def generator(self) -> torch.Generator:
        """A fresh generator under the batch's seed."""
        return torch.Generator().manual_seed(self.seed)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            mask=self.mask.to(device),
            features={layer: rows.to(device) for layer, rows in self.features.items()},
            lengths=self.lengths.to(device),
            best=None if self.best is None else self.best.to(device),
        )


def shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    """Values [B, T] moved ``by`` columns to the front; what falls in at the end is zero (False)."""
    moved = torch.zeros_like(values)
    if by < values.shape[1]:
        moved[:, : values.shape[1] - by] = values[:, by:]
    return moved
