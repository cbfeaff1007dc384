"""What a recipe is: a method's head, its loss and its acceptance.  The loop knows nothing else of a method.

Words: a *start* is a row t whose features are the last that are known; token t + 1 is the anchor there, which the
target chose itself.  Depth d (0-based) guesses token t + 2 + d, and the target's own opinion of it is that of row
t + 1 + d.  A guess counts at depth d where rows t … t + 1 + d all count (``Batch.mask``).
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from outrider.errors import ConfigError
from outrider.options import check_options
from outrider.train.features.batches import Batch, shifted
from outrider.train.objectives import Objective, make_objective
from outrider.train.products import Product

if TYPE_CHECKING:
    from outrider.models.base import TargetModel
    from outrider.train.features.teacher import Teacher


@dataclass(frozen=True, eq=False)
class LossReport:
    """The loss of one batch."""

    loss: torch.Tensor
    """Scalar, the weighted mean over the batch: what is differentiated."""
    weight: float
    """The sum of weights the mean was taken over; batches of one step are averaged by it."""
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Detached scalars worth a column of the record, each a mean by the same weights (loss by depth or by term)."""


def mean_parts(reports: Sequence[LossReport]) -> dict[str, float]:
    """Parts of the loss over the batches of a step, by each report's weight."""
    parts: dict[str, float] = {}
    weights: dict[str, float] = {}
    for report in reports:
        for name, value in report.parts.items():
            parts[name] = parts.get(name, 0.0) + float(value) * report.weight
            weights[name] = weights.get(name, 0.0) + report.weight
    return {name: value / max(weights[name], 1e-9) for name, value in parts.items()}


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Guesses that were the target's own most probable token, by depth; only starts accepted so far are tested."""

    accepted_by_text: torch.Tensor
    """int64 [texts, depths]."""
    tested_by_text: torch.Tensor
    """int64 [texts, depths]."""

    def __add__(self, other: Acceptance) -> Acceptance:
        """The texts of both."""
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
        """Accepted ÷ tested at each depth; 0 where nothing was tested."""
        return (self.accepted / self.tested.clamp(min=1)).tolist()

    @property
    def accepted_length(self) -> float:
        """τ of a chain of all depths: 1 + Σ_j Π_{i ≤ j} α_i."""
        return 1.0 + float(torch.cumprod(self.accepted.double() / self.tested.clamp(min=1), 0).sum())

    def __str__(self) -> str:
        return f"τ {self.accepted_length:.3f} · α by position {' '.join(f'{rate:.3f}' for rate in self.rates)}"


class Recipe(ABC):
    """How one method is trained: the base of frozen dataclasses of options, each with its default.

    Whatever a recipe draws comes from ``batch.generator()``: a batch's loss and acceptance are functions of their
    arguments alone.
    """

    method: ClassVar[str]
    """The method whose drafter runs the head: the name of the recipe's file."""
    product: ClassVar[Product] = Product()
    """What is written of a trained network."""
    objective: Any
    """Option: an objective's name, or a weighted sum of several."""

    def __post_init__(self) -> None:
        check_options(self)
        make_objective(self.objective)

    @cached_property
    def divergence(self) -> Objective:
        """The objective that the option names."""
        return make_objective(self.objective)

    def layers_read(self, target: TargetModel) -> tuple[int, ...]:
        """Target layers whose rows must be captured; ``target.layers`` (the final rows) is always captured too.

        Raises:
            ConfigError: nothing of this method can be trained for the target.
        """
        return (target.layers,)

    @abstractmethod
    def head(self, target: TargetModel, vocabulary: torch.Tensor | None, seed: int) -> torch.nn.Module:
        """The head to train, before its first step.

        Args:
            target: the model it drafts for.
            vocabulary: int64 [v], sorted ids of the reduced draft vocabulary; None is the whole.
            seed: fixes its random weights.
        """

    @abstractmethod
    def loss(self, head: Any, batch: Batch, teacher: Teacher) -> LossReport:
        """The loss of a batch; gradients reach the head's parameters alone."""

    @abstractmethod
    def acceptance(self, head: Any, batch: Batch, teacher: Teacher) -> Acceptance:
        """Held-out greedy acceptance by depth of a chain, from every start of the batch."""

    def calibrate(self, head: Any, batches: Sequence[Batch], teacher: Teacher) -> Mapping[str, float]:
        """Set what is measured, not learned, once the weights are final: a tree's shape, a confidence's temperature.

        It may replace ``head.config``; the weights stay.

        Returns:
            Figures worth telling, by name.
        """
        return {}

    def next_stage(self, trained: Sequence[Any]) -> Recipe | None:
        """The recipe of the next network of several that are trained one after another, or None when all are.

        Args:
            trained: the networks so far.
        """
        return None if trained else self

    def acceptance_by_member(
        self, heads: Sequence[Any], batches: Sequence[Batch], teacher: Teacher
    ) -> Mapping[str, Acceptance]:
        """Held-out acceptance of several networks, by name: each alone and all together; empty for one."""
        return {}


R = TypeVar("R", bound=type[Recipe])
_REGISTRY: dict[str, type[Recipe]] = {}


def register(recipe: R) -> R:
    """Make a recipe known; its method must be the name of the file it stands in."""
    _REGISTRY[recipe.method] = recipe
    return recipe


def trainable() -> list[str]:
    """Names of every method that can be trained, without importing them."""
    from outrider.train import recipes

    names = [module.name for module in pkgutil.iter_modules(recipes.__path__)]
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def recipe_class(name: str) -> type[Recipe]:
    """The recipe of a method, importing its file.

    Raises:
        ConfigError: listing the methods that can be trained.
    """
    method = name.lower().replace("-", "_")
    if method not in _REGISTRY:
        if method not in trainable():
            raise ConfigError(f"there is no training for {name!r}; there is for: {', '.join(trainable())}")
        importlib.import_module(f"outrider.train.recipes.{method}")
    return _REGISTRY[method]


def best_tokens(batch: Batch, teacher: Teacher) -> torch.Tensor:
    """The target's most probable next token of every row: int64 [B, T]."""
    return teacher.best(batch.final) if batch.best is None else batch.best


def target_law(
    batch: Batch, teacher: Teacher, texts: torch.Tensor, rows: torch.Tensor, depth: int, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The target's own distribution of the tokens guessed at a depth.

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
    """Target ids of a head's best guesses, of logits [..., v]: int64 [...]."""
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
    """Acceptance of a chain drafted at every start, or of the tree that several chains merge into.

    Each guess is made under the text's own tokens before it, and accepted if it is the target's most probable token in
    a chain that was right at all depths before.  Deeper ones are tested while the text went on with that very token, as
    it always does where the answer was written greedily: elsewhere the next row is another text's.

    Args:
        batch: the texts.
        chains: of each drafter, int64 [depths, B, T], target token ids.
        best: int64 [B, T], the target's most probable next token of every row.
        at: bool [B, T], the starts where chains were drafted; None is every start.
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
