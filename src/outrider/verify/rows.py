"""The target's rows of one pass, for an acceptance rule, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
        self._tokens: list[int | None] | None = None

    def token(self, place: int) -> int | None:
        """The token of one sequence; None if it needs a call of its own."""
        if self._tokens is None:
            self._tokens = chosen(self._logits, [RowToRank(one.sampler, one.first, (), 1) for one in self._sequences])
        return self._tokens[place]


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

    Args:
        logits: float [rows of the pass, ≥ vocabulary].
        tree: the drafted tree.
        sampler: turns rows into distributions.
        round_number: the request's round, which keys the dice of ratio rules.
        ended: whether the output ends on a draft path; rows after an end are not computed.
        first: the anchor's row of the pass.
        shared: answers that are computed for the whole pass at once.
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
        self._tokens: _Tokens | None = None
        self._laws: _Laws | None = None
        self._failures: dict[int, Exception] | None = None

    @property
    def logits(self) -> torch.Tensor:
        """Float [nodes, ≥ vocabulary]."""
        return self._logits[self._first : self._first + len(self.tree)]

    @property
    def failures(self) -> dict[int, Exception]:
        """Errors of unreadable rows, by node; rows after an end have none."""
        if self._failures is None:
            self._failures = {}
        return self._failures

    @property
    def tokens(self) -> Answers[int]:
        """The target's own token after each node; ``ERROR`` if there is none."""
        if self._tokens is None:
            self._tokens = _Tokens(self)
        return self._tokens

    @property
    def probabilities(self) -> Answers[Law]:
        """The target's distribution after each node; all 0 if there is none."""
        if self._laws is None:
            self._laws = _Laws(self)
        return self._laws

    def dice(self, purpose: Purpose) -> Dice:
        """Dice for one purpose in this round."""
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


class _Tokens(dict[int, int]):
    """The target's own tokens by node, each computed once."""

    def __init__(self, rows: TargetRows) -> None:
        self._rows = rows

    def __missing__(self, node: int) -> int:
        self[node] = token = self._rows.read(node, self._rows.choose, lambda: ERROR)
        return token


class _Laws(dict[int, Law]):
    """The target's distributions by node, each computed once."""

    def __init__(self, rows: TargetRows) -> None:
        self._rows = rows

    def __missing__(self, node: int) -> Law:
        self[node] = law = self._rows.read(node, self._rows.law, lambda: unreadable(self._rows.sampler.vocabulary))
        return law


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
    """Split a pass's logits into each sequence's rows.

    Args:
        logits: float [wanted rows, ≥ vocabulary].
        vocabulary: number of valid columns.
        sequences: in the order of their rows.
    """
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
