"""The target's rows of one pass, sequence by sequence, for an acceptance rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Final, Generic, NamedTuple, TypeVar

import torch

from outrider.errors import NumericsError
from outrider.law import ERROR, Law, Laws, unreadable
from outrider.sampling.best import check
from outrider.sampling.distribution import softmax, undefined
from outrider.sampling.noise import Purpose
from outrider.sampling.sampler import Path, RequestSampler
from outrider.tree import TokenTree
from outrider.verify.base import Dice, KeyedDice

_TOGETHER: Final = 1 << 15
"""Most probabilities that one softmax call computes."""
_Answer = TypeVar("_Answer")


class LazyAnswers(Generic[_Answer]):
    """One value per node, computed at the first access and kept."""

    def __init__(self, compute: Callable[[int], _Answer]) -> None:
        self._compute = compute
        self._known: dict[int, _Answer] = {}

    def __getitem__(self, node: int, /) -> _Answer:
        if node not in self._known:
            self._known[node] = self._compute(node)
        return self._known[node]


class SharedArgmax:
    """The argmax of every row of a pass, computed once if a plain greedy request needs it.

    Args:
        logits: float [rows, ≥ vocabulary].
        vocabulary: number of valid columns.
    """

    def __init__(self, logits: torch.Tensor, vocabulary: int) -> None:
        self._logits, self._vocabulary = logits, vocabulary

    @cached_property
    def _best(self) -> tuple[list[int], list[bool]]:
        values, tokens = self._logits[:, : self._vocabulary].max(dim=1)
        return tokens.tolist(), torch.isfinite(values).tolist()

    def token(self, row: int) -> int:
        """The best token of a row.

        Raises:
            NumericsError: the row holds NaN or infinity.
        """
        tokens, finite = self._best
        if not finite[row]:
            raise NumericsError(
                "the target's logits hold NaN or infinity, so the request ended; check the model and its dtype"
            )
        return tokens[row]


class SharedLaws:
    """The distributions of a pass's rows at one temperature, computed in blocks when needed.

    Args:
        logits: float [rows, ≥ vocabulary].
        vocabulary: number of valid columns.
        temperature: positive.
    """

    def __init__(self, logits: torch.Tensor, vocabulary: int, temperature: float) -> None:
        self._logits, self._vocabulary, self._temperature = logits, vocabulary, temperature
        self._together = max(1, _TOGETHER // vocabulary)
        self._known: dict[int, Laws] = {}

    def law(self, row: int) -> Law:
        """The distribution of a row.

        Raises:
            NumericsError: the row holds NaN or infinity.
        """
        part, place = divmod(row, self._together)
        if part not in self._known:
            self._known[part] = softmax(self._scaled(part * self._together, self._together))
        law: Law = self._known[part][place]
        if undefined(law):
            check(self._scaled(row, 1))
        return law

    def _scaled(self, first: int, count: int) -> torch.Tensor:
        return self._logits[first : first + count, : self._vocabulary].float() / self._temperature


class TargetRows:
    """The target's rows for one sequence's tree, computed only where a rule looks.

    Args:
        logits: float [nodes, ≥ vocabulary].
        tree: the draft tree.
        sampler: turns rows into distributions.
        round_number: the request's round, which keys the dice of ratio rules.
        ended: whether the output ends on a draft path; rows after an end are not computed.
        best: gives a node's argmax from the shared pass; None uses the sampler.
        law: gives a node's distribution from the shared pass; None uses the sampler.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        tree: TokenTree,
        sampler: RequestSampler,
        round_number: int,
        ended: Callable[[Path], bool] = lambda path: False,
        best: Callable[[int], int] | None = None,
        law: Callable[[int], Law] | None = None,
    ) -> None:
        self.logits, self._tree, self._sampler, self._round = logits, tree, sampler, round_number
        self._ended = ended
        self.failures: dict[int, Exception] = {}
        """The errors of unreadable rows, by node; rows after an end have none."""
        self.tokens = LazyAnswers(self._guarded(best or self._choose, lambda: ERROR))
        """The target's own token after each node; ``ERROR`` if there is none."""
        self.probabilities = LazyAnswers(self._guarded(law or self._law, lambda: unreadable(sampler.vocabulary)))
        """The target's distribution after each node; all 0 if there is none."""

    def dice(self, purpose: Purpose) -> Dice:
        """Dice for one purpose in this round."""
        return KeyedDice(self._sampler.seed, self._round, self._sampler.choice, purpose)

    def _guarded(self, read: Callable[[int], _Answer], nothing: Callable[[], _Answer]) -> Callable[[int], _Answer]:
        def answer(node: int) -> _Answer:
            try:
                if not (node and self._ended(self._tree.paths[node])):
                    return read(node)
            except Exception as error:  # noqa: BLE001 - an error belongs to this row and is kept with it
                self.failures[node] = error
            return nothing()

        return answer

    def _choose(self, node: int) -> int:
        return self._sampler.choose(self.logits[node : node + 1], [self._tree.paths[node]])[0]

    def _law(self, node: int) -> Law:
        law: Law = self._sampler.probabilities(self.logits[node : node + 1], [self._tree.paths[node]])[0]
        return law


class Asked(NamedTuple):
    """One sequence whose rows a rule will judge."""

    first: int
    """Its first row among the pass's logits."""
    tree: TokenTree
    sampler: RequestSampler
    round_number: int
    ended: Callable[[Path], bool]
    """Whether the output ends on a draft path."""


def rows_of(logits: torch.Tensor, vocabulary: int, sequences: Sequence[Asked]) -> list[TargetRows]:
    """Cut a pass's logits into each sequence's rows.

    Args:
        logits: float [wanted rows, ≥ vocabulary].
        vocabulary: number of valid columns.
        sequences: the sequences, in the order of their rows.
    """
    best = SharedArgmax(logits, vocabulary)
    laws: dict[float, SharedLaws] = {}
    rows = []
    for first, tree, sampler, round_number, ended in sequences:
        nodes, temperature = logits[first : first + len(tree)], sampler.temperature_alone
        if temperature is not None and temperature not in laws:
            laws[temperature] = SharedLaws(logits, vocabulary, temperature)
        token = partial(_shifted, best.token, first) if sampler.is_argmax else None
        law = None if temperature is None else partial(_shifted, laws[temperature].law, first)
        rows.append(TargetRows(nodes, tree, sampler, round_number, ended, token, law))
    return rows


def _shifted(answer: Callable[[int], _Answer], first: int, node: int) -> _Answer:
    return answer(first + node)
