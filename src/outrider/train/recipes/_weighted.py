"""The weighted mean of losses by depth, whether a depth has one weight or every start its own."""

from __future__ import annotations

import torch

from outrider.train.recipes._depth_weights import Weights
from outrider.train.recipes.base import LossReport

Place = torch.Tensor | tuple[torch.Tensor, ...]
"""What picks starts from a grid: a mask of its shape, or an index for each of its dimensions."""


class WeightedLoss:
    """Gathers the losses of one batch, depth by depth.

    Args:
        weights: how much each depth counts.
        counted: bool [depths, …], the starts at which a guess counts at each depth.
        like: of the precision and on the device of the losses.
    """

    def __init__(self, weights: Weights, counted: torch.Tensor, like: torch.Tensor) -> None:
        self._weights, self._counted = weights, counted.movedim(0, -1)
        self._own = weights.weighting.reads_draft
        # What the draft cannot say has probability nought.
        self._q = torch.zeros(self._counted.shape if self._own else self._counted.shape[-1:], device=like.device)
        self._shares = [] if self._own else weights(self._q, self._counted).tolist()
        self._total, self._weight = like.new_zeros(()), 0.0
        self._waiting: list[tuple[int, Place, torch.Tensor]] = []
        self._parts: dict[str, torch.Tensor] = {}

    def add(self, depth: int, place: Place, losses: torch.Tensor, z: torch.Tensor, x: torch.Tensor) -> None:
        """Take the losses of a depth.

        Args:
            depth: counted from 0.
            place: which starts they are of.
            losses: [n].
            z: [n, v], the draft's logits there.
            x: int64 [n], the text's own token there, an index into the same v columns.
        """
        self._parts[f"loss_{depth + 1}"] = losses.detach().mean()
        if self._own:
            chances = torch.softmax(z.detach().float(), -1).gather(-1, x.unsqueeze(-1)).squeeze(-1)
            self._q[..., depth][place] = chances
            self._waiting.append((depth, place, losses))
            return
        self._total = self._total + self._shares[depth] * losses.sum()
        self._weight += self._shares[depth] * len(losses)

    def report(self) -> LossReport:
        """The weighted mean of everything taken."""
        if self._waiting:
            weights = self._weights(self._q, self._counted)
            for depth, place, losses in self._waiting:
                share = weights[..., depth][place]
                self._total = self._total + (share * losses).sum()
                self._weight += float(share.sum())
        return LossReport(self._total / max(self._weight, 1e-9), self._weight, self._parts)
