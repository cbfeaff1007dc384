"""How a drafter's law becomes proposals under each kind of rule that judges drafts by a law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from outrider.law import Law
from outrider.sampling.noise import Purpose, counter_word, gumbel_range
from outrider.verify.base import Draws, KeyedDice

if TYPE_CHECKING:
    from outrider.drafters.base import DraftSequence


class Proposal(NamedTuple):
    """One token a drafter's distribution yields under the running acceptance rule."""

    token: int
    probability: float
    """The drafter's probability of the token: an estimate of its acceptance."""
    q: Law | None
    removed: tuple[int, ...]


def _most_probable(sequence: DraftSequence, q: Law, node: int, width: int, source: int) -> list[Proposal]:
    return [
        Proposal(token, float(q[token]), None, ())
        for token in _greatest(torch.from_numpy(q), min(width, int(np.count_nonzero(q))))
    ]


def _independent(sequence: DraftSequence, q: Law, node: int, width: int, source: int) -> list[Proposal]:
    sampler = sequence.sampler
    dice = KeyedDice(sampler.seed, sequence.round_number, sampler.choice, Purpose.DRAFT, source)
    tokens = [dice.draw(node, q) for _ in range(width)]
    return [Proposal(token, float(q[token]), q, ()) for token in tokens]


def _without_replacement(sequence: DraftSequence, q: Law, node: int, width: int, source: int) -> list[Proposal]:
    """Gumbel top-k: the order of log q + noise is the order of draws without replacement (Kool et al. 2019)."""
    sampler = sequence.sampler
    words = (sequence.round_number, node, counter_word(Purpose.DRAFT, sampler.choice, source))
    scores = torch.from_numpy(q).log() + gumbel_range(sampler.seed, len(q), words, torch.device("cpu"))
    tokens = _greatest(scores, min(width, int(np.count_nonzero(q))))
    return [Proposal(token, float(q[token]), q, tuple(tokens[:i])) for i, token in enumerate(tokens)]


def _greatest(scores: torch.Tensor, count: int) -> list[int]:
    """Places of the ``count`` greatest scores, greatest first."""
    return torch.topk(scores, count).indices.tolist()


DRAWERS: Final = {
    Draws.ARGMAX: _most_probable,
    Draws.INDEPENDENT: _independent,
    Draws.WITHOUT_REPLACEMENT: _without_replacement,
}
"""By rule: (sequence, law of a row, node, how many, which drafter) → proposals."""
