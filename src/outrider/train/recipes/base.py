"""The protocol of a recipe: a method's head, its loss and its acceptance.  The loop knows nothing else of a method.

A *start* is a row t, the last with known features; its anchor is token t + 1, the target's own choice.  Depth d, from
0, guesses token t + 2 + d, and row t + 1 + d has the target's distribution of it.  A guess counts at depth d if rows
t … t + 1 + d all count (``Batch.mask``).
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch

from outrider.errors import ConfigError
from outrider.models.base import TargetModel
from outrider.options import check_options
from outrider.train.features.batches import Batch, shifted
from outrider.train.features.teacher import Teacher
from outrider.train.objectives import Objective, make_objective
from outrider.train.products import Product


@dataclass(frozen=True, eq=False)
class LossReport:
    """The loss of one batch."""

    loss: torch.Tensor
    """Scalar, the weighted mean over the batch."""
    weight: float
    """The sum of weights; batches of one step are averaged by it."""
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Detached scalars for columns of the record, means by the same weights (loss by depth or by term)."""


def mean_parts(reports: Sequence[LossReport]) -> dict[str, float]:
    """Weighted means of the loss parts over the batches of a step."""
    parts: dict[str, float] = {}
    weights: dict[str, float] = {}
    for report in reports:
        for name, value in report.parts.items():
            parts[name] = parts.get(name, 0.0) + float(value) * report.weight
            weights[name] = weights.get(name, 0.0) + report.weight
    return {name: value / max(weights[name], 1e-9) for name, value in parts.items()}


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Guesses equal to the target's most probable token, by depth; only starts accepted so far are tested."""

    accepted_by_text: torch.Tensor
    """int64 [texts, depths]."""
    tested_by_text: torch.Tensor
    """int64 [texts, depths]."""

    def __add__(self, other: Acceptance) -> Acceptance:
        """The acceptance over the texts of both."""
        mine, others = (self.accepted_by_text, self.tested_by_text), (other.accepted_by_text, other.tested_by_text)
        return Acceptance(*(torch.cat(pair) for pair in zip(mine, others, strict=True)))

    @property
    def accepted(self) -> torch.Tensor:
        """Of all texts: int64 [depths]."""
        return self.accepted_by_text.sum(0)

    @property
    def tested(self) -> torch.Tensor:
        """Of all texts: int64 [depths]."""
        return self.tested_by_text.sum(0)

    @property
    def rates(self) -> list[float]:
        """Accepted ÷ tested at each depth; 0 if nothing was tested."""
        return (self.accepted / self.tested.clamp(min=1)).tolist()

    @property
    def accepted_length(self) -> float:
        """τ of a chain of all depths: 1 + Σ_j Π_{i ≤ j} α_i."""
        return 1.0 + float(torch.cumprod(self.accepted.double() / self.tested.clamp(min=1), 0).sum())

    def __str__(self) -> str:
        return f"τ {self.accepted_length:.3f} · α by position {' '.join(f'{rate:.3f}' for rate in self.rates)}"


class Recipe(ABC):
    """How one method is trained; subclasses are frozen dataclasses of options.

    All random draws come from ``batch.generator()``, so a batch's loss and acceptance depend on their arguments alone.
    """

    method: ClassVar[str]
    """The method whose drafter runs the head, and the name of the recipe's file."""
    product: ClassVar[Product] = Product()
    """How trained networks are written."""
    objective: Any
    """Option: an objective's name, or a weighted sum of several."""

    def __post_init__(self) -> None:
        check_options(self)
        make_objective(self.objective)

    @cached_property
    def divergence(self) -> Objective:
        """The objective of the option."""
        return make_objective(self.objective)

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """Target layers whose rows must be captured; ``target.layers`` (the final rows) is always captured.

        Raises:
            ConfigError: the method cannot be trained for the target.
        """
        return (target.layers,)

    @abstractmethod
    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> torch.nn.Module:
        """A new head to train.

        Args:
            target: the model it drafts for.
            vocabulary: int64 [v], sorted ids of the reduced draft vocabulary; None is the whole.
            seed: of its random weights.
        """

    @abstractmethod
    def loss(self, head: Any, batch: Batch, teacher: Teacher) -> LossReport:
        """The loss of a batch, with gradients for the head's parameters alone."""

    @abstractmethod
    def acceptance(self, head: Any, batch: Batch, teacher: Teacher) -> Acceptance:
        """Held-out greedy acceptance of chains by depth, from every start of the batch."""

    def calibrate(self, head: Any, batches: Sequence[Batch], teacher: Teacher) -> Mapping[str, float]:
        """Set what is measured and not learned, such as a tree's shape or a confidence's temperature.

        Called once the weights are final.  It may replace ``head.config``, but not the weights.

        Returns:
            Figures to print, by name.
        """
        return {}

    def next_stage(self, trained: Sequence[Any]) -> Recipe | None:
        """The recipe of the next network after those in ``trained``; None if all are trained."""
        return None if trained else self

    def acceptance_by_member(
        self, heads: Sequence[Any], batches: Sequence[Batch], teacher: Teacher
    ) -> Mapping[str, Acceptance]:
        """Held-out acceptance of several networks by name, each alone and all together; empty for a single one."""
        return {}


R = TypeVar("R", bound=type[Recipe])
_REGISTRY: dict[str, type[Recipe]] = {}


def register(recipe: R) -> R:
    """Register a recipe; its method must be the name of its file."""
    _REGISTRY[recipe.method] = recipe
    return recipe


def trainable() -> list[str]:
    """Names of all methods that can be trained, without importing them."""
    from outrider.train import recipes

    names = [module.name for module in pkgutil.iter_modules(recipes.__path__)]
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def recipe_class(name: str) -> type[Recipe]:
    """Import the recipe of a method.

    Raises:
        ConfigError: the method cannot be trained; the message lists those that can.
    """
    method = name.lower().replace("-", "_")
    if method not in _REGISTRY:
        if method not in trainable():
            raise ConfigError(f"method {name!r} cannot be trained; trainable methods are: {', '.join(trainable())}")
        importlib.import_module(f"outrider.train.recipes.{method}")
    return _REGISTRY[method]


def best_tokens(batch: Batch, teacher: Teacher) -> torch.Tensor:
    """The target's most probable next token of every row: int64 [B, T]."""
    return teacher.best(batch.final) if batch.best is None else batch.best


def target_law(
    batch: Batch, teacher: Teacher, texts: torch.Tensor, rows: torch.Tensor, depth: int, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The target's distribution of the tokens guessed at a depth.

    Args:
        batch: the texts.
        teacher: the target's matrices.
        texts: int64 [n], of the starts.
        rows: int64 [n], of the starts.
        depth: counted from 0.
        ids: int64 [v], a reduced vocabulary; None is the whole.

    Returns:
        fp32 [n, v].
    """
    return torch.softmax(teacher.logits(batch.final[texts, rows + 1 + depth], ids), -1)


def drafted_tokens(head: Any, logits: torch.Tensor) -> torch.Tensor:
    """Target ids of a head's best guesses, from logits [..., v]: int64 [...]."""
    best = logits.argmax(-1)
    tokens: torch.Tensor = best if head.ids is None else head.ids[best]
    return tokens


def starts(batch: Batch, depths: int) -> torch.Tensor:
    """Where a guess counts: bool [depths, B, T], at depth d the starts t whose rows t … t + 1 + d all count."""
    counted, alive = [], batch.mask
    for depth in range(depths):
        alive = alive & shifted(batch.mask, depth + 1)
        counted.append(alive)
    return torch.stack(counted)


def drafted_acceptance(
    batch: Batch, chains: Sequence[torch.Tensor], best: torch.Tensor, at: torch.Tensor | None = None
) -> Acceptance:
    """Acceptance of a chain drafted at every start, or of the merged tree of several chains.

    Guesses follow the text's own tokens.  A guess is accepted if it is the target's most probable token and its chain
    was right at all depths before.  Deeper guesses are tested only while the text continues with that token, because
    otherwise the next row belongs to another text; greedy answers always continue.

    Args:
        batch: the texts.
        chains: int64 [depths, B, T] of each drafter, target token ids.
        best: int64 [B, T], the target's most probable next token of every row.
        at: bool [B, T], the starts with drafts; None is every start.
    """
    accepted, tested = [], []
    begun = torch.ones_like(batch.mask) if at is None else at
    alive = torch.stack([begun] * len(chains))
    for depth, counted in enumerate(starts(batch, len(chains[0]))):
        true = shifted(best, depth + 1)
        tested.append((alive.any(0) & counted).sum(-1))
        alive = alive & counted & torch.stack([guesses[depth] == true for guesses in chains])
        accepted.append(alive.any(0).sum(-1))
        alive = alive & (true == batch.following(depth + 2))
    return Acceptance(torch.stack(accepted, -1), torch.stack(tested, -1))
