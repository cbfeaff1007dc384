"""The target's rows of one pass, handed to an acceptance rule sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch

from outrider.errors import NumericsError
from outrider.sampling.noise import Purpose
from outrider.sampling.sampler import RequestSampler
from outrider.tree import TokenTree
from outrider.verify.base import Dice, KeyedDice


class SharedArgmax:
    """The argmax of every row of a pass: taken once for all plain greedy requests, and only if one asks.

    Args:
        logits: float [rows, ≥ vocabulary].
        vocabulary: columns that count.
    """

    def __init__(self, logits: torch.Tensor, vocabulary: int) -> None:
        self._logits, self._vocabulary = logits, vocabulary

    @cached_property
    def _best(self) -> tuple[list[int], list[bool]]:
        values, tokens = self._logits[:, : self._vocabulary].max(dim=1)
        return tokens.tolist(), torch.isfinite(values).tolist()

    def reader(self, start: int, stop: int) -> Callable[[], list[int]]:
        """A function that reads some rows' tokens."""
        return partial(self._read, slice(start, stop))

    def _read(self, rows: slice) -> list[int]:
        tokens, finite = self._best
        if not all(finite[rows]):
            raise NumericsError("the target's logits hold NaN or infinity; the request was ended")
        return tokens[rows]


class TargetRows:
    """The target's answer to one sequence's tree, computed only as far as a rule asks.

    Args:
        logits: float [nodes, ≥ vocabulary].
        tree: the tree they answer.
        sampler: turns rows into distributions.
        round_number: the request's round, which names the dice of ratio rules.
        best: reads the rows' argmax where the whole pass shares it; None computes them here.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        tree: TokenTree,
        sampler: RequestSampler,
        round_number: int,
        best: Callable[[], list[int]] | None = None,
    ) -> None:
        self.logits, self._tree, self._sampler, self._best = logits, tree, sampler, best
        self._round = round_number

    @cached_property
    def tokens(self) -> list[int]:
        """The target's own token after each node."""
        return self._best() if self._best else self._sampler.choose(self.logits, self._tree.paths)

    @cached_property
    def probabilities(self) -> torch.Tensor:
        """float64 [nodes, vocabulary] on the CPU: the target's distribution after each node."""
        return self._sampler.probabilities(self.logits, self._tree.paths)

    def dice(self, purpose: Purpose) -> Dice:
        """Dice for one purpose in this round."""
        return KeyedDice(self._sampler.seed, self._round, self._sampler.choice, purpose)


def rows_of(
    logits: torch.Tensor, vocabulary: int, requests: Sequence[tuple[int, TokenTree, RequestSampler, int]]
) -> list[TargetRows]:
    """Cut a pass's logits into each sequence's rows.

    Args:
        logits: float [wanted rows, ≥ vocabulary].
        vocabulary: columns that count.
        requests: per sequence its first row, tree, sampler and round number.
    """
    shared = SharedArgmax(logits, vocabulary)
    return [
        TargetRows(
            logits[first : first + len(tree)],
            tree,
            sampler,
            round_number,
            shared.reader(first, first + len(tree)) if sampler.is_argmax else None,
        )
        for first, tree, sampler, round_number in requests
    ]
