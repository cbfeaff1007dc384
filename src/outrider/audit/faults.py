"""The self-test: faults that other engines have had, planted one at a time; an audit that misses one proves nothing.

Each fault replaces one part of an engine by a faulty one; no module is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from outrider.audit import request_faults
from outrider.audit.parts import Parts
from outrider.drafters.base import Proposal
from outrider.engine.picker import DRAWS, DrawingPicker
from outrider.engine.turn import Turn
from outrider.kv.pool import KVPool, PagedCache
from outrider.kv.prefix import PrefixIndex, Text
from outrider.kv.state import Kept
from outrider.law import Law
from outrider.models.base import TargetModel, TargetOutput
from outrider.sampling.noise import Purpose
from outrider.sampling.sampler import RequestSampler
from outrider.tree import SequenceRows, TokenTree, TreeBatch
from outrider.verify.base import Answers, Dice, KeyedDice, Rows, Verdict
from outrider.verify.block import Block
from outrider.verify.rejection import Rejection
from outrider.verify.rows import TargetRows


@dataclass(frozen=True)
class Fault:
    """One fault and how it gets into an engine."""

    name: str
    plant: Callable[[Parts], Parts]


class _ForgetfulCache(PagedCache):
    def keep(self, kept: Sequence[Kept]) -> None:
        """Copies nothing: the rows of rejected drafts stay where the accepted ones belong."""


class _ForgetfulPool(KVPool):
    cache_type = _ForgetfulCache


def stale_rows(parts: Parts) -> Parts:
    """Commit moves no row of keys and values."""
    return replace(parts, pool=_ForgetfulPool)


class _HazyIndex(PrefixIndex):
    def page_text(self, tokens: Sequence[int], page: int) -> Text:
        """The page's first token alone."""
        return super().page_text(tokens, page)[:1]


class _HazyCache(PagedCache):
    index_type = _HazyIndex


class _HazyPool(KVPool):
    cache_type = _HazyCache


def hazy_prefixes(parts: Parts) -> Parts:
    """Pages are taken over though the text on them differs."""
    return replace(parts, pool=_HazyPool)


class _ShiftedSiblings:
    """A target that sees every child but the first of its node one position too late."""

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self.vocabulary, self.context_length = target.vocabulary, target.context_length
        self.row_invariant, self.device = target.row_invariant, target.device
        self.row_bytes, self.width, self.layers = target.row_bytes, target.width, target.layers
        self.source, self.backend, self.own_threads = target.source, target.backend, target.own_threads
        self.rollback, self.row_buckets, self.precision = target.rollback, target.row_buckets, target.precision
        self.packed_bytes, self.token_bytes = target.packed_bytes, target.token_bytes
        self.embed, self.unembed, self.unembed_rows = target.embed, target.unembed, target.unembed_rows

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


def shifted_siblings(parts: Parts) -> Parts:
    """Positions of siblings count on instead of being equal."""
    return replace(parts, target=_ShiftedSiblings(parts.target))


class _GreedyPicker(DrawingPicker):
    def drawn(
        self,
        turn: Turn,
        logits: torch.Tensor,
        paths: Sequence[Sequence[int]],
        nodes: Sequence[int],
        width: int,
        source: int,
    ) -> list[list[Proposal]]:
        """Takes the most probable token and claims that it was drawn from q."""
        laws = turn.request.sampler.probabilities(logits, paths)
        return [[Proposal(int(q.argmax()), float(q.max()), q, ())] for q in laws]


def greedy_drafts_with_q(parts: Parts) -> Parts:
    """Drafts are the drafter's best tokens, but are tested as if they were drawn from its distribution."""
    return replace(parts, verifier=Rejection(), picker=_GreedyPicker)


class _PositionPicker(DrawingPicker):
    def drawn(
        self,
        turn: Turn,
        logits: torch.Tensor,
        paths: Sequence[Sequence[int]],
        nodes: Sequence[int],
        width: int,
        source: int,
    ) -> list[list[Proposal]]:
        """Names the dice of a draft by the position it would stand at."""
        sampler = turn.request.sampler
        return [
            DRAWS[self._draws](sampler, sampler.position(path), q, 0, width, source)
            for q, path in zip(sampler.probabilities(logits, paths), paths, strict=True)
        ]


class _PositionDice:
    """Dice that are named by the position of a node."""

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
    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        assert isinstance(rows, TargetRows)
        return super().accept(tree, _FaultyRows(rows, rows.probabilities, rows.sampler if len(tree) > 1 else None))


def reused_noise(parts: Parts) -> Parts:
    """Dice are named by position, so those a round has thrown past its end are thrown again by the next."""
    return replace(parts, verifier=_PositionBlock(), picker=_PositionPicker)


class _DraftBonus(Rejection):
    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        p = [rows.probabilities[node] for node in range(len(tree))]
        for candidate in tree.candidates:
            if candidate.q is not None and not tree.children[candidate.node]:
                p[candidate.node] = candidate.q
        return super().accept(tree, _FaultyRows(rows, p))


def bonus_from_draft(parts: Parts) -> Parts:
    """The token after the last accepted draft comes from the drafter's row."""
    return replace(parts, verifier=_DraftBonus())


IN_TEXTS: Final = (
    Fault("stale KV row", stale_rows),
    Fault("sibling position off by one", shifted_siblings),
    Fault("penalty without its path", request_faults.path_blind_choices),
)
"""Faults of the engine's bookkeeping, which show in greedy texts."""
IN_PREFIXES: Final = (Fault("prefix key ignores tokens", hazy_prefixes),)
"""Faults of the prefix cache, which show where prompts begin alike."""
IN_SITUATIONS: Final = (
    Fault("end inside accepted drafts missed", request_faults.late_ends),
    Fault("min_tokens ignored after drafts", request_faults.ends_behind_drafts),
    Fault("processor without its path", request_faults.path_blind_processors),
    Fault("n completions with the same noise", request_faults.shared_dice),
    Fault("stream without accepted drafts", request_faults.thin_streams),
    Fault("rows kept through preemption", request_faults.hoarded_rows),
)
"""Faults of a request's life, which show where it ends early, waits or has others beside it."""
IN_FREQUENCIES: Final = (
    Fault("q used for a greedy draft", greedy_drafts_with_q),
    Fault("reused noise", reused_noise),
    Fault("bonus token taken from the draft row", bonus_from_draft),
)
"""Faults of the dice, which show in frequencies."""
IN_LAWS: Final = (
    Fault("temperature times 1.3 in shared distributions", request_faults.hot_laws),
    Fault("distributions without the drafts on the path", request_faults.path_blind_laws),
    Fault("truncation ignored in distributions", request_faults.untruncated_laws),
)
"""Faults on the way from a row to its law, which show in frequencies through the real sampler."""
