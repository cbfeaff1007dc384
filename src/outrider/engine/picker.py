"""Turns drafter logits into proposals: the one place where a drafter's distribution meets the dice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import torch

from outrider.drafters.base import Frontier, Proposal
from outrider.errors import RequestError
from outrider.law import Law
from outrider.requests.turn import Turn
from outrider.sampling.noise import Purpose, counter_word, gumbel_range
from outrider.sampling.sampler import Best, RequestSampler, RowToRank, perturbed_best
from outrider.verify.base import Draws, KeyedDice


class DrawingPicker:
    """Draws proposals for the requests of one round in the form that the acceptance rule needs.

    Args:
        turns: by request id.
        draws: how the rule wants a distribution turned into proposals.
    """

    def __init__(self, turns: Mapping[str, Turn], draws: Draws) -> None:
        self._turns, self._draws = turns, draws

    def pick(
        self, logits: torch.Tensor, frontiers: Sequence[Frontier], source: int
    ) -> list[list[list[Proposal]] | Exception]:
        """Proposals for each frontier, drawn with the dice of its request."""
        known = self._perturbed(logits, frontiers) if self._draws is Draws.PERTURBED else [None] * len(frontiers)
        found: list[list[list[Proposal]] | Exception] = []
        for one, picked in zip(frontiers, known, strict=True):
            try:
                found.append(self._alone(logits[list(one.rows)], one, source) if picked is None else picked)
            except Exception as error:  # noqa: BLE001 - it is told to the one request that met it
                found.append(error)
        return found

    def _alone(self, logits: torch.Tensor, one: Frontier, source: int) -> list[list[Proposal]]:
        """Proposals for the nodes of one request."""
        turn = self._turns[one.key]
        ended = [turn.endings.reached(path) for path in one.paths]
        if not any(ended):
            with suppress(RequestError):
                return self.drawn(turn, logits, one.paths, one.nodes, one.width, source)
        picked: list[list[Proposal]] = [[] for _ in one.paths]
        for row, (path, node, over) in enumerate(zip(one.paths, one.nodes, ended, strict=True)):
            if not over:
                with suppress(RequestError):
                    (picked[row],) = self.drawn(turn, logits[row : row + 1], [path], [node], one.width, source)
        return picked

    def _perturbed(self, logits: torch.Tensor, frontiers: Sequence[Frontier]) -> list[list[list[Proposal]] | None]:
        """Proposals of all requests that can be asked together; None for the others."""
        turns = [self._turns[one.key] for one in frontiers]
        ended = [any(map(turn.endings.reached, one.paths)) for turn, one in zip(turns, frontiers, strict=True)]
        asked = [
            RowToRank(turn.request.sampler, row, path, one.width)
            for turn, one, over in zip(turns, frontiers, ended, strict=True)
            for row, path in zip(one.rows, one.paths, strict=True)
            if not over
        ]
        answers = iter(perturbed_best(logits, asked))
        found: list[list[list[Proposal]] | None] = []
        for one, over in zip(frontiers, ended, strict=True):
            best = [None if over else next(answers) for _ in one.rows]
            rows = [_point_masses(row) for row in best if row is not None]
            found.append(rows if len(rows) == len(best) else None)
        return found

    def drawn(
        self,
        turn: Turn,
        logits: torch.Tensor,
        paths: Sequence[Sequence[int]],
        nodes: Sequence[int],
        width: int,
        source: int,
    ) -> list[list[Proposal]]:
        """Proposals per row; no row lies after an end.

        Raises:
            RequestError: the request's parameters refuse a row's history.
        """
        sampler = turn.request.sampler
        if self._draws is Draws.PERTURBED:
            return [_point_masses(row) for row in sampler.perturbed_best(logits, paths, width)]
        draw = DRAWS[self._draws]
        return [
            draw(sampler, turn.request.round_number, q, node, width, source)
            for q, node in zip(sampler.probabilities(logits, paths), nodes, strict=True)
        ]


def _point_masses(best: Best) -> list[Proposal]:
    return [Proposal(token, share, None, ()) for token, share in zip(*best, strict=True)]


def _most_probable(
    sampler: RequestSampler, round_number: int, q: Law, node: int, width: int, source: int
) -> list[Proposal]:
    return [
        Proposal(token, float(q[token]), None, ())
        for token in _greatest(torch.from_numpy(q), min(width, int(np.count_nonzero(q))))
    ]


def _independent(
    sampler: RequestSampler, round_number: int, q: Law, node: int, width: int, source: int
) -> list[Proposal]:
    dice = KeyedDice(sampler.seed, round_number, sampler.choice, Purpose.DRAFT, source)
    tokens = [dice.draw(node, q) for _ in range(width)]
    return [Proposal(token, float(q[token]), q, ()) for token in tokens]


def _without_replacement(
    sampler: RequestSampler, round_number: int, q: Law, node: int, width: int, source: int
) -> list[Proposal]:
    """Gumbel top-k: the order of log q + noise is the order of draws without replacement (Kool et al. 2019)."""
    words = (round_number, node, counter_word(Purpose.DRAFT, sampler.choice, source))
    scores = torch.from_numpy(q).log() + gumbel_range(sampler.seed, len(q), words, torch.device("cpu"))
    tokens = _greatest(scores, min(width, int(np.count_nonzero(q))))
    return [Proposal(token, float(q[token]), q, tuple(tokens[:i])) for i, token in enumerate(tokens)]


def _greatest(scores: torch.Tensor, count: int) -> list[int]:
    """Indices of the ``count`` greatest scores, greatest first."""
    return torch.topk(scores, count).indices.tolist()


DRAWS: Final = {
    Draws.ARGMAX: _most_probable,
    Draws.INDEPENDENT: _independent,
    Draws.WITHOUT_REPLACEMENT: _without_replacement,
}
"""(sampler, round number, distribution of a row, node, how many, which drafter) → proposals."""
