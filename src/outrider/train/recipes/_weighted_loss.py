"""The loss over drafted positions and its weights: a draft helps only if all drafts before it are accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from outrider.errors import ConfigError
from outrider.train.recipes.base import LossReport

Place = torch.Tensor | tuple[torch.Tensor, ...]
"""Selects starts from a grid: a mask, or an index for each dimension."""


def geometric(depths: int, ratio: float) -> torch.Tensor:
    """λ^k for k = 0 … depths − 1 (Medusa, EAGLE-3): fp32 [depths]."""
    return ratio ** torch.arange(depths, dtype=torch.float32)


def exponential(depths: int, scale: float) -> torch.Tensor:
    """exp(−k ÷ γ) for k = 0 … depths − 1 (DFlash, DSpark): fp32 [depths]."""
    return torch.exp(-torch.arange(depths, dtype=torch.float32) / scale)


def d_pace(q: torch.Tensor, alpha: float, counted: torch.Tensor | None = None) -> torch.Tensor:
    """D-PACE: weigh each position by its effect on the expected accepted length of the current draft.

    Source: "D-PACE: dynamic position-aware cross-entropy for parallel speculative drafting", 2026 (arXiv 2605.18810,
    equations 7 and 8).  With the smoothed confidence c_i = (1 − α)·q_i + α the expected accepted length is
    L = Σ_j Π_{i ≤ j} c_i; the weight of position k is ∂L ÷ ∂ log c_k = Σ_{j ≥ k} Π_{i ≤ j} c_i.

    Args:
        q: [..., depths], the draft's probability of each position's true token; no gradient flows through it.
        alpha: smoothing, from 0 (none) to 1 (weights depths, depths − 1 … 1).
        counted: bool [..., depths], positions before the text's end; None is all.

    Returns:
        [..., depths].
    """
    survival = torch.cumprod((1.0 - alpha) * q.detach() + alpha, -1)
    if counted is not None:
        survival = survival * counted
    return survival.flip(-1).cumsum(-1).flip(-1)


@dataclass(frozen=True)
class Weighting:
    """A way to weigh positions."""

    number: str
    """The recipe's option that is its parameter."""
    reads_draft: bool
    """Whether weights depend on the current draft, so that every text and start has its own."""
    weigh: Callable[[torch.Tensor, float, torch.Tensor], torch.Tensor]
    """(q [..., depths], number, counted [..., depths]) → the weights [depths], or [..., depths] if it reads q."""


WEIGHTINGS: Final = {
    "geometric": Weighting("decay", False, lambda q, ratio, counted: geometric(q.shape[-1], ratio)),
    "exponential": Weighting("scale", False, lambda q, scale, counted: exponential(q.shape[-1], scale)),
    "d_pace": Weighting("smoothing", True, d_pace),
}
"""All weightings, by their names in ``--weights``."""
NAMES: Final = ", ".join(WEIGHTINGS)


@dataclass(frozen=True)
class Weights:
    """A weighting with its parameter."""

    weighting: Weighting
    number: float

    @classmethod
    def of(cls, recipe: Any) -> Weights:
        """The weighting of a recipe's option ``weights``, or geometric, with its parameter.

        Raises:
            ConfigError: there is no such weighting, or the recipe sets the parameter of another one.
        """
        name = getattr(recipe, "weights", "geometric")
        if name not in WEIGHTINGS:
            raise ConfigError(f"{recipe.method}: there is no weighting {name!r}; there are: {NAMES}")
        weighting = WEIGHTINGS[name]
        others = {each.number for each in WEIGHTINGS.values()} - {weighting.number}
        for item in dataclasses.fields(recipe):
            if item.name in others and getattr(recipe, item.name) != item.default:
                raise ConfigError(f"{recipe.method}: {item.name} has no effect with {name} weights; leave it out")
        return cls(weighting, getattr(recipe, weighting.number))

    def __call__(self, q: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """The weights; see :attr:`Weighting.weigh`."""
        return self.weighting.weigh(q, self.number, counted)


class WeightedLoss:
    """The weighted mean of the losses of one batch, added depth by depth.

    Args:
        recipe: has the weights, see :meth:`Weights.of`.
        counted: bool [depths, …], the starts at which a guess counts at each depth.
        like: a tensor with the precision and the device of the losses.
    """

    def __init__(self, recipe: Any, counted: torch.Tensor, like: torch.Tensor) -> None:
        self._weights, self._counted = Weights.of(recipe), counted.movedim(0, -1)
        self._own = self._weights.weighting.reads_draft
        # A token that is not in the draft vocabulary has probability 0.
        self._q = torch.zeros(self._counted.shape if self._own else self._counted.shape[-1:], device=like.device)
        self._shares = [] if self._own else self._weights(self._q, self._counted).tolist()
        self._total, self._weight = like.new_zeros(()), 0.0
        self._waiting: list[tuple[int, Place, torch.Tensor]] = []
        self._parts: dict[str, torch.Tensor] = {}

    def add(
        self, depth: int, place: Place, losses: torch.Tensor, z: torch.Tensor, x: torch.Tensor, **terms: torch.Tensor
    ) -> None:
        """Add the losses of a depth.

        Args:
            depth: counted from 0.
            place: the starts of the losses.
            losses: [n].
            z: [n, v], the draft's logits; read only by weights that depend on the draft.
            x: int64 [n], the text's own token as an index into the same v columns; likewise.
            terms: [n], terms of the losses that also get a column in the record.
        """
        for name, values in {"loss": losses, **terms}.items():
            self._parts[f"{name}_{depth + 1}"] = values.detach().mean()
        if self._own:
            chances = torch.softmax(z.detach().float(), -1).gather(-1, x.unsqueeze(-1)).squeeze(-1)
            self._q[..., depth][place] = chances
            self._waiting.append((depth, place, losses))
            return
        self._total = self._total + self._shares[depth] * losses.sum()
        self._weight += self._shares[depth] * len(losses)

    def report(self) -> LossReport:
        """The weighted mean of all losses."""
        if self._waiting:
            weights = self._weights(self._q, self._counted)
            for depth, place, losses in self._waiting:
                share = weights[..., depth][place]
                self._total = self._total + (share * losses).sum()
                self._weight += float(share.sum())
        return LossReport(self._total / max(self._weight, 1e-9), self._weight, self._parts)
