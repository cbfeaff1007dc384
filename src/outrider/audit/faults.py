"""The self-test: faults that other engines have had, planted one at a time.  The audit must catch each.

Each fault replaces parts of an engine with faulty ones; no module is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from outrider.audit import request_faults
from outrider.audit.parts import Parts
from outrider.audit.patched_requests import RefittedEngine, with_sampler
from outrider.drafters.base import Proposal
from outrider.engine.picker import DRAWS, DrawingPicker
from outrider.kv.pool import KVPool, PagedCache
from outrider.kv.prefix import PrefixIndex, Text
from outrider.kv.state import Kept
from outrider.law import Law
from outrider.models.base import TargetModel, TargetOutput
from outrider.requests.turn import Turn
from outrider.sampling.noise import Purpose
from outrider.sampling.sampler import RequestSampler
from outrider.tree import SequenceRows, TokenTree, TreeBatch
from outrider.verify.base import Answers, Dice, KeyedDice, Rows, Verdict
from outrider.verify.block import Block
from outrider.verify.rejection import Rejection
from outrider.verify.rows import TargetRows


@dataclass(frozen=True)
class Fault:
    """One fault, and how to plant it in an engine."""

    name: str
    plant: Callable[[Parts], Parts]

    @classmethod
    def replacing(cls, name: str, **parts: Any) -> Fault:
        """A fault that replaces parts of an engine."""
        return cls(name, partial(replace, **parts))


class _ForgetfulCache(PagedCache):
    """Commit copies no rows: those of rejected drafts stay where the accepted ones belong."""

    def commit(self, kept: Sequence[Kept]) -> None: ...


class _ForgetfulPool(KVPool):
    cache_type = _ForgetfulCache


class _HazyIndex(PrefixIndex):
    """Pages match by their first token alone, so pages of another text are reused."""

    def page_text(self, tokens: Sequence[int], page: int) -> Text:
        return super().page_text(tokens, page)[:1]


class _HazyCache(PagedCache):
    index_type = _HazyIndex


class _HazyPool(KVPool):
    cache_type = _HazyCache


class _ShiftedSiblings:
    """A target that sees every child but the first of its node one position too late."""

    def __init__(self, target: TargetModel) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        positions = batch.positions.clone()
        for start, sequence in zip(batch.starts, batch.sequences, strict=True):
            for row in _younger_siblings(sequence):
                positions[start + row] += 1
        return self._target.forward(replace(batch, positions=positions), cache, layers)


def _younger_siblings(sequence: SequenceRows) -> list[int]:
    nodes = [node for children in (sequence.tree.children if sequence.tree else ()) for node in children[1:]]
    rows = (len(sequence.forced) + node - sequence.skip for node in nodes)
    return [row for row in rows if row >= 0]


def _with_shifted_siblings(parts: Parts) -> Parts:
    target: Any = _ShiftedSiblings(parts.target)
    return replace(parts, target=target)


class _GreedyPicker(DrawingPicker):
    """Drafts the most probable token, and claims that it was drawn from q."""

    def drawn(
        self,
        turn: Turn,
        logits: torch.Tensor,
        paths: Sequence[Sequence[int]],
        nodes: Sequence[int],
        width: int,
        source: int,
    ) -> list[list[Proposal]]:
        laws = turn.request.sampler.probabilities(logits, paths)
        return [[Proposal(int(q.argmax()), float(q.max()), q, ())] for q in laws]


class _PositionPicker(DrawingPicker):
    """Keys the random numbers of a draft by the position it would have."""

    def drawn(
        self,
        turn: Turn,
        logits: torch.Tensor,
        paths: Sequence[Sequence[int]],
        nodes: Sequence[int],
        width: int,
        source: int,
    ) -> list[list[Proposal]]:
        sampler = turn.request.sampler
        return [
            DRAWS[self._draws](sampler, sampler.position(path), q, 0, width, source)
            for q, path in zip(sampler.probabilities(logits, paths), paths, strict=True)
        ]


class _PositionDice:
    """Random numbers keyed by the position of a node."""

    def __init__(self, sampler: RequestSampler, purpose: Purpose) -> None:
        self._sampler, self._purpose = sampler, purpose

    def coin(self, node: int, probability: float) -> bool:
        return self._at(node).coin(0, probability)

    def draw(self, node: int, weights: Law) -> int:
        return self._at(node).draw(0, weights)

    def _at(self, node: int) -> Dice:
        position = self._sampler.position(()) + node
        return KeyedDice(self._sampler.seed, position, self._sampler.choice, self._purpose)


@dataclass(frozen=True, eq=False)
class _FaultyRows:
    """Rows with some answers replaced."""

    true: Rows
    probabilities: Answers[Law]
    sampler: RequestSampler | None = None

    @property
    def tokens(self) -> Answers[int]:
        return self.true.tokens

    def dice(self, purpose: Purpose) -> Dice:
        return self.true.dice(purpose) if self.sampler is None else _PositionDice(self.sampler, purpose)


class _PositionBlock(Block):
    """Keys by position, so the next round reuses the numbers that this one used past its end."""

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        assert isinstance(rows, TargetRows)
        return super().accept(tree, _FaultyRows(rows, rows.probabilities, rows.sampler if len(tree) > 1 else None))


class _DraftBonus(Rejection):
    """Takes the token after the last accepted draft from the drafter's distribution."""

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        p = [rows.probabilities[node] for node in range(len(tree))]
        for candidate in tree.candidates:
            if candidate.q is not None and not tree.children[candidate.node]:
                p[candidate.node] = candidate.q
        return super().accept(tree, _FaultyRows(rows, p))


IN_TEXTS: Final = (
    Fault.replacing("stale KV row", pool=_ForgetfulPool),
    Fault("sibling position off by one", _with_shifted_siblings),
    Fault.replacing("penalty without its path", engine=with_sampler(request_faults.PathBlindChoices)),
)
"""Faults of the engine's bookkeeping; greedy texts show them."""
IN_PREFIXES: Final = (Fault.replacing("prefix key ignores tokens", pool=_HazyPool),)
"""Faults of the prefix cache; prompts that begin alike show them."""
IN_SITUATIONS: Final = (
    Fault.replacing("end inside accepted drafts missed", engine=request_faults.LateEnds),
    Fault.replacing("min_tokens ignored after drafts", engine=with_sampler(request_faults.NoMinimum)),
    Fault.replacing("processor without its path", engine=with_sampler(request_faults.LateProcessors)),
    Fault.replacing("n completions with the same noise", engine=request_faults.SharedDice),
    Fault.replacing("stream without accepted drafts", engine=request_faults.ThinStreams),
    Fault.replacing("rows kept through preemption", pool=request_faults.HoardingPool),
)
"""Faults in the life of a request; early ends, preemption and concurrent requests show them."""
IN_FREQUENCIES: Final = (
    Fault.replacing("q used for a greedy draft", verifier=Rejection(), picker=_GreedyPicker),
    Fault.replacing("reused noise", verifier=_PositionBlock(), picker=_PositionPicker),
    Fault.replacing("bonus token taken from the draft row", verifier=_DraftBonus()),
)
"""Faults of the random numbers; frequencies show them."""
IN_LAWS: Final = (
    Fault.replacing(
        "temperature times 1.3 in shared distributions", engine=partial(RefittedEngine, request_faults.heat)
    ),
    Fault.replacing("distributions without the drafts on the path", engine=with_sampler(request_faults.PathBlindLaws)),
    Fault.replacing("truncation ignored in distributions", engine=with_sampler(request_faults.UntruncatedLaws)),
)
"""Faults between a row and its distribution; frequencies through the real sampler show them."""
