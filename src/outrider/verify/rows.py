"""The target's rows of one pass, for an acceptance rule, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Final, NamedTuple, TypeVar

import torch

from outrider.errors import NumericsError
from outrider.law import ERROR, Law, Laws, unreadable
from outrider.sampling.best import UNDEFINED, check
from outrider.sampling.distribution import softmax, undefined
from outrider.sampling.noise import Purpose
from outrider.sampling.sampler import Path, RequestSampler, RowToRank, chosen
from outrider.tree import TokenTree
from outrider.verify.base import Answers, Dice, KeyedDice

_TOGETHER: Final = 1 << 15
"""Maximum probabilities in one softmax call."""
_Answer = TypeVar("_Answer")


class SharedArgmax:
    """The argmax of all rows of a pass, float [rows, ≥ vocabulary]; computed once, when a greedy request reads it."""

    def __init__(self, logits: torch.Tensor, vocabulary: int) -> None:
        self._logits, self._vocabulary = logits, vocabulary
        self._best: tuple[list[int], list[bool]] | None = None

    def token(self, first: int, node: int) -> int:
        """The best token of row ``first + node``; NumericsError if the row holds NaN or infinity."""
        if self._best is None:
            values, tokens = self._logits[:, : self._vocabulary].max(dim=1)
            self._best = tokens.tolist(), torch.isfinite(values).tolist()
        best, finite = self._best
        if not finite[first + node]:
            raise NumericsError(UNDEFINED)
        return best[first + node]


class SharedLaws:
    """The distributions of a pass's rows at one temperature, computed in blocks when they are read."""

    def __init__(self, logits: torch.Tensor, vocabulary: int, temperature: float) -> None:
        self._logits, self._vocabulary, self._temperature = logits, vocabulary, temperature
        self._together = max(1, _TOGETHER // vocabulary)
        self._known: dict[int, Laws] = {}

    def law(self, first: int, node: int) -> Law:
        """The distribution of row ``first + node``; NumericsError if the row holds NaN or infinity."""
        row = first + node
        part, place = divmod(row, self._together)
        if part not in self._known:
            self._known[part] = softmax(self._scaled(part * self._together, self._together))
        law: Law = self._known[part][place]
        if undefined(law):
            check(self._scaled(row, 1))
        return law

    def _scaled(self, first: int, count: int) -> torch.Tensor:
        return self._logits[first : first + count, : self._vocabulary].float() / self._temperature


class SharedAnchors:
    """The tokens after the anchors of requests that sample, all chosen in one call, when the first is read."""

    def __init__(self, logits: torch.Tensor, sequences: Sequence[Asked]) -> None:
        self._logits, self._sequences = logits, sequences
        self._tokens: dict[int, int | None] | None = None

    def token(self, place: int) -> int | None:
        """The token of one sequence; None if it needs a call of its own."""
        if self._tokens is None:
            sampling = {at: one for at, one in enumerate(self._sequences) if not one.sampler.is_argmax}
            asked = [RowToRank(one.sampler, one.first, (), 1) for one in sampling.values()]
            self._tokens = dict(zip(sampling, chosen(self._logits, asked), strict=True))
        return self._tokens.get(place)


class Shared(NamedTuple):
    """Answers of calls that serve a whole pass; None uses the sequence's own sampler."""

    best: Callable[[int], int] | None = None
    """The argmax after a node, which is the token."""
    law: Callable[[int], Law] | None = None
    """The distribution after a node."""
    anchor: Callable[[], int | None] = lambda: None
    """The token after the anchor; None if it needs a call of its own."""


ALONE: Final = Shared()


class TargetRows:
    """The target's rows for one sequence's tree, computed only where a rule reads them.

    ``logits`` are the pass's, float [rows, ≥ vocabulary]; ``first`` is the anchor's row.  ``ended`` says whether the
    output ends on a draft path; rows after an end are not computed.  The round number keys the dice of ratio rules.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        tree: TokenTree,
        sampler: RequestSampler,
        round_number: int,
        ended: Callable[[Path], bool] = lambda path: False,
        first: int = 0,
        shared: Shared = ALONE,
    ) -> None:
        self._logits, self._first, self.tree, self.sampler, self._round = logits, first, tree, sampler, round_number
        self._anchor = shared.anchor
        self.ended, self.choose, self.law = ended, shared.best or self._choose, shared.law or self._law

    @property
    def logits(self) -> torch.Tensor:
        """Float [nodes, ≥ vocabulary]."""
        return self._logits[self._first : self._first + len(self.tree)]

    @cached_property
    def failures(self) -> dict[int, Exception]:
        """Errors of unreadable rows, by node; rows after an end have none."""
        return {}

    @cached_property
    def tokens(self) -> Answers[int]:
        return _Read(self, self.choose, lambda: ERROR)

    @cached_property
    def probabilities(self) -> Answers[Law]:
        return _Read(self, self.law, lambda: unreadable(self.sampler.vocabulary))

    def dice(self, purpose: Purpose) -> Dice:
        return KeyedDice(self.sampler.seed, self._round, self.sampler.choice, purpose)

    def read(self, node: int, answer: Callable[[int], _Answer], nothing: Callable[[], _Answer]) -> _Answer:
        """The answer at a node; ``nothing()`` for an unreadable row."""
        try:
            if not (node and self.ended(self.tree.paths[node])):
                return answer(node)
        except Exception as error:  # noqa: BLE001 - the error belongs to this row alone
            self.failures[node] = error
        return nothing()

    def _choose(self, node: int) -> int:
        if node == 0 and (token := self._anchor()) is not None:
            return token
        return self.sampler.choose(self.logits[node : node + 1], [self.tree.paths[node]])[0]

    def _law(self, node: int) -> Law:
        law: Law = self.sampler.probabilities(self.logits[node : node + 1], [self.tree.paths[node]])[0]
        return law


class _Read(dict[int, _Answer]):
    """Answers by node, each computed once; ``nothing()`` for unreadable rows."""

    def __init__(self, rows: TargetRows, answer: Callable[[int], _Answer], nothing: Callable[[], _Answer]) -> None:
        self._rows, self._answer, self._nothing = rows, answer, nothing

    def __missing__(self, node: int) -> _Answer:
        self[node] = answer = self._rows.read(node, self._answer, self._nothing)
        return answer


class Asked(NamedTuple):
    """A sequence whose rows a rule reads."""

    first: int
    """Its first row among the pass's logits."""
    tree: TokenTree
    sampler: RequestSampler
    round_number: int
    ended: Callable[[Path], bool]
    """Whether the output ends on a draft path."""


def rows_of(logits: torch.Tensor, vocabulary: int, sequences: Sequence[Asked]) -> list[TargetRows]:
    """Split a pass's logits, float [wanted rows, ≥ vocabulary], into each sequence's rows, in order."""
    best = SharedArgmax(logits, vocabulary)
    laws: dict[float, SharedLaws] = {}
    anchors = SharedAnchors(logits, sequences)
    rows = []
    for place, (first, tree, sampler, round_number, ended) in enumerate(sequences):
        temperature = sampler.temperature_alone
        if temperature is not None and temperature not in laws:
            laws[temperature] = SharedLaws(logits, vocabulary, temperature)
        token = partial(best.token, first) if sampler.is_argmax else None
        law = None if temperature is None else partial(laws[temperature].law, first)
        shared = Shared(token, law, partial(anchors.token, place))
        rows.append(TargetRows(logits, tree, sampler, round_number, ended, first, shared))
    return rows
