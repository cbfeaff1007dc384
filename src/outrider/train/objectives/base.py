"""What an objective is, and how a new one becomes known.

An objective is one file in this package holding one function of the file's name.  Letters, as in the papers:

* ``z``: float [n, v], the draft's logits; ``q = softmax(z)``.
* ``p``: float [n, v], the target's probabilities.  A row may sum to less than one: what is missing is the mass of
  tokens that a reduced draft vocabulary lacks.
* ``x``: int64 [n], the text's own next token, an index into the same v columns.
* ``α = Σ min(p, q)``: the probability that a draft is accepted (Leviathan et al. 2023, theorem 3.5).
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.errors import ConfigError

Divergence = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(z [n, v], p [n, v], x [n]) → the loss of each row [n]."""


@dataclass(frozen=True)
class Objective:
    """A divergence and what it reads, as data; weighted sums of them are objectives too."""

    name: str
    divergence: Divergence
    reads_teacher: bool
    """It reads ``p``; without, the teacher need not be asked and ``p`` may be anything."""
    reads_tokens: bool
    """It reads ``x``: rows whose next token the draft vocabulary lacks must be left out."""

    def __call__(self, z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The loss of each row, in fp32 at least: [n]."""
        return self.divergence(wide(z), wide(p), x)


def wide(values: torch.Tensor) -> torch.Tensor:
    """Fp32 of anything narrower: no probability is made in half precision."""
    return values if values.dtype == torch.float64 else values.float()


_REGISTRY: dict[str, Objective] = {}


def objective(*, reads_teacher: bool, reads_tokens: bool) -> Callable[[Divergence], Divergence]:
    """Make a divergence known under the name of the file it stands in."""

    def register(divergence: Divergence) -> Divergence:
        name = divergence.__module__.rpartition(".")[2]
        _REGISTRY[name] = Objective(name, divergence, reads_teacher, reads_tokens)
        return divergence

    return register


def names() -> list[str]:
    """Names of every objective, without importing them."""
    from outrider.train import objectives

    return sorted(module.name for module in pkgutil.iter_modules(objectives.__path__) if module.name != "base")


_TERM = re.compile(r"\s*(?:(?P<factor>[0-9.]+(?:e-?[0-9]+)?)\s*\*\s*)?(?P<name>[a-z_]+)\s*")


def make_objective(text: str) -> Objective:
    """An objective by name, or a weighted sum such as ``0.1*cross_entropy+1.8*tv``.

    Raises:
        ConfigError: the text is no such sum, or names an objective that does not exist; those there are are listed.
    """
    terms = []
    for part in text.split("+"):
        match = _TERM.fullmatch(part)
        if match is None:
            raise ConfigError(f"{part.strip()!r} is not an objective; write a name, or factor*name")
        terms.append((_number(match["factor"] or "1"), _named(match["name"])))
    return terms[0][1] if text == terms[0][1].name else _weighted_sum(text, terms)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number, so it cannot weigh an objective") from None


def _named(name: str) -> Objective:
    if name not in _REGISTRY:
        if name not in names():
            raise ConfigError(f"there is no objective {name!r}; there are: {', '.join(names())}")
        importlib.import_module(f"outrider.train.objectives.{name}")
    return _REGISTRY[name]


def _weighted_sum(text: str, terms: Sequence[tuple[float, Objective]]) -> Objective:
    def divergence(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        losses = [factor * term.divergence(z, p, x) for factor, term in terms]
        return torch.stack(losses).sum(0)

    return Objective(
        text,
        divergence,
        reads_teacher=any(term.reads_teacher for _, term in terms),
        reads_tokens=any(term.reads_tokens for _, term in terms),
    )
