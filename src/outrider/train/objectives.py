"""Divergences to train on.  A new one is one function here; ``--objective`` takes it by its name.

Letters, as in the papers:

* ``z``: float [n, v], the draft's logits; ``q = softmax(z)``.
* ``p``: float [n, v], the target's probabilities.  A row may sum to less than one if a reduced draft vocabulary lacks
  tokens.
* ``x``: int64 [n], the text's own next token, an index into the same v columns.
* ``α = Σ min(p, q)``: the probability that a draft is accepted (Leviathan et al. 2023, theorem 3.5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from outrider.errors import ConfigError

Divergence = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(z [n, v], p [n, v], x [n]) → the loss of each row [n]."""
ETA: Final = 3.0
_LEAST_ACCEPTANCE: Final = 1e-9
"""The lower bound of an acceptance, because the gradient is its inverse."""
_LEAST_PROBABILITY: Final = 1e-30
"""The lower bound of a probability in a logarithm."""


@dataclass(frozen=True)
class Objective:
    """A divergence, or a weighted sum of several, and what it reads."""

    name: str
    divergence: Divergence
    reads_teacher: bool
    """Whether it reads ``p``; if not, ``p`` may be anything."""
    reads_tokens: bool
    """Whether it reads ``x``; if so, rows whose next token is not in the draft vocabulary must be left out."""

    def __call__(self, z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The loss of each row, in fp32 at least: [n]."""
        return self.divergence(wide(z), wide(p), x)


def wide(values: torch.Tensor) -> torch.Tensor:
    """Fp32 of anything narrower: no probability is made in half precision."""
    return values if values.dtype == torch.float64 else values.float()


_REGISTRY: dict[str, Objective] = {}


def objective(*, reads_teacher: bool, reads_tokens: bool) -> Callable[[Divergence], Divergence]:
    """Register a divergence under its function's name."""

    def register(divergence: Divergence) -> Divergence:
        name = divergence.__name__
        _REGISTRY[name] = Objective(name, divergence, reads_teacher, reads_tokens)
        return divergence

    return register


@objective(reads_teacher=False, reads_tokens=True)
def cross_entropy(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """−log q(x): cross-entropy with the text's own next token."""
    return torch.nn.functional.cross_entropy(z, x, reduction="none")


@objective(reads_teacher=True, reads_tokens=False)
def kl(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """KL(p ‖ q) = Σ p·(log p − log q), forward: the draft covers all that the target may say."""
    return (torch.xlogy(p, p) - p * torch.log_softmax(z, -1)).sum(-1)


@objective(reads_teacher=True, reads_tokens=False)
def reverse_kl(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """KL(q ‖ p) = Σ q·(log q − log p): the draft says only what the target may say."""
    log_q = torch.log_softmax(z, -1)
    return (log_q.exp() * (log_q - p.clamp(min=_LEAST_PROBABILITY).log())).sum(-1)


@objective(reads_teacher=True, reads_tokens=False)
def jsd(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """½·KL(p ‖ m) + ½·KL(q ‖ m) with m = ½(p + q): Jensen-Shannon, bounded, between forward and reverse."""
    log_q = torch.log_softmax(z, -1)
    q = log_q.exp()
    log_m = (0.5 * (p + q)).clamp(min=_LEAST_PROBABILITY).log()
    return 0.5 * (torch.xlogy(p, p) - p * log_m + q * (log_q - log_m)).sum(-1)


@objective(reads_teacher=True, reads_tokens=False)
def tv(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """1 − α = ½·‖p − q‖₁: total variation, the probability that a draft is rejected.

    Its gradient vanishes if p and q have little in common, so it needs a warm start or another objective beside it.
    """
    return 1.0 - torch.minimum(p, torch.softmax(z, -1)).sum(-1)


@objective(reads_teacher=True, reads_tokens=False)
def acceptance(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """−log α: total variation with a gradient that does not vanish far from the target.

    Source: the LK losses of arXiv 2602.23881, the likelihood form.
    """
    alpha = torch.minimum(p, torch.softmax(z, -1)).sum(-1)
    return -alpha.clamp(min=_LEAST_ACCEPTANCE).log()


@objective(reads_teacher=True, reads_tokens=False)
def lk_hybrid(z: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """λ·KL + (1 − λ)·TV with λ = exp(−η·α), through which no gradient flows: forward KL far off, TV when near.

    Source: the LK losses of arXiv 2602.23881, the hybrid form.
    """
    distance = tv(z, p, x)
    weight = torch.exp(-ETA * (1.0 - distance.detach()))
    return weight * kl(z, p, x) + (1.0 - weight) * distance


_TERM = re.compile(r"\s*(?:(?P<factor>[0-9.]+(?:e-?[0-9]+)?)\s*\*\s*)?(?P<name>[a-z_]+)\s*")


def names() -> list[str]:
    """Names of every objective."""
    return sorted(_REGISTRY)


def make_objective(text: str) -> Objective:
    """An objective by name, or a weighted sum such as ``0.1*cross_entropy+1.8*tv``.

    Raises:
        ConfigError: the text is no such sum, or names an unknown objective; the message lists all objectives.
    """
    terms = []
    for part in text.split("+"):
        match = _TERM.fullmatch(part)
        if match is None:
            raise ConfigError(f"{part.strip()!r} is not an objective; write a name, or factor*name")
        if match["name"] not in _REGISTRY:
            raise ConfigError(f"there is no objective {match['name']!r}; there are: {', '.join(names())}")
        terms.append((_number(match["factor"] or "1"), _REGISTRY[match["name"]]))
    return terms[0][1] if text == terms[0][1].name else _weighted_sum(text, terms)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"an objective's factor must be a number, not {text!r}") from None


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
