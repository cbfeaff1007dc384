"""Grow trees level by level, with any network that gives logits for their nodes.

A dynamic tree follows EAGLE-2 (Li et al. 2024, §4): expand the likeliest nodes of each level, then keep the likeliest
of all.  A static tree has a fixed shape.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, takewhile
from typing import Final, Protocol

import torch

from outrider.drafters.base import DraftContext, DraftSequence, Frontier, Proposal
from outrider.price import RowPrice
from outrider.tree import SequenceRows, TokenTree, TreeBuilder, root_only

CHUNK: Final = 512
"""Maximum committed rows per sequence in one pass of a drafter."""
JOINED: Final = 32
"""Up to this many committed rows join the first drafting pass; more get passes of their own."""
Ranks = tuple[int, ...]
"""Position of a node in a shape: the child index at each level, from the anchor down."""


class TreeShape(Protocol):
    """Number of children of each node."""

    @property
    def beam(self) -> int | None:
        """Nodes per level that may have children; None is all."""
        ...

    def width(self, ranks: Ranks, causal: bool) -> int:
        """Number of children of a node; if ``causal``, it must not depend on drawn tokens."""
        ...


@dataclass(frozen=True)
class DynamicTree:
    """The likeliest nodes of each level get ``topk`` children each."""

    topk: int

    @property
    def beam(self) -> int:
        return self.topk

    def width(self, ranks: Ranks, causal: bool) -> int:
        """If the shape may not depend on drawn tokens, only the anchor branches."""
        return 1 if causal and ranks else self.topk


@dataclass(frozen=True)
class StaticTree:
    """A fixed shape."""

    nodes: tuple[Ranks, ...]
    """All drafted nodes."""

    @property
    def beam(self) -> None:
        return None

    @cached_property
    def _widths(self) -> dict[Ranks, int]:
        widths: dict[Ranks, int] = {}
        for ranks in self.nodes:
            widths[ranks[:-1]] = max(widths.get(ranks[:-1], 0), ranks[-1] + 1)
        return widths

    @classmethod
    def likeliest(cls, chances: Sequence[Sequence[float]], count: int) -> StaticTree:
        """Make the shape of ``count`` nodes with the likeliest nodes (Cai et al. 2024, §2.3).

        ``chances`` says by depth and rank how often the proposal of that rank is right if its parent is; falling.
        """
        chosen: list[Ranks] = []
        offers: list[tuple[float, Ranks]] = [(-chances[0][0], (0,))] if chances else []
        while offers and len(chosen) < count:
            chance, ranks = heapq.heappop(offers)
            chosen.append(ranks)
            level, last = chances[len(ranks) - 1], ranks[-1]
            if last + 1 < len(level):
                heapq.heappush(offers, (chance * level[last + 1] / level[last], (*ranks[:-1], last + 1)))
            if len(ranks) < len(chances):
                heapq.heappush(offers, (chance * chances[len(ranks)][0], (*ranks, 0)))
        return cls(tuple(sorted(chosen, key=lambda ranks: (len(ranks), ranks))))

    @property
    def depth(self) -> int:
        """Levels below the anchor."""
        return max(map(len, self.nodes), default=0)

    def width(self, ranks: Ranks, causal: bool) -> int:
        return self._widths.get(ranks, 0)


class Failures:
    """Errors met while a tree grew; raised when its request drafts again.

    The tokens drawn before the error stay in the tree: under a ratio rule all drawn tokens must be tested, because
    they may have caused the error.
    """

    def __init__(self) -> None:
        self._met: dict[str, Exception] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._met

    def note(self, key: str, error: Exception) -> None:
        """Remember a request's error."""
        self._met[key] = error

    def finish(self, context: DraftContext, growing: Iterable[Growth | None]) -> list[TokenTree]:
        """Return every sequence's finished tree, and note the errors of those that failed; None is the anchor alone."""
        trees = []
        for growth, sequence in zip(growing, context.sequences, strict=True):
            if growth is not None and growth.error is not None:
                self.note(sequence.key, growth.error)
            trees.append(growth.finish() if growth else root_only(sequence.tokens[-1]))
        return trees

    def check(self, key: str) -> None:
        """Raise the request's error.  Keeps raising: the guard retries each request alone."""
        if (error := self._met.get(key)) is not None:
            raise error

    def forget(self, key: str) -> None:
        """Drop the error of a request that has ended."""
        self._met.pop(key, None)


class Growth:
    """One request's tree while it grows, to at most ``nodes`` nodes, anchor included, and ``depth`` levels.

    ``context`` is the number of rows before the anchor in the drafter's cache, computed or not.  The price decides
    which drafts are worth their row.
    """

    def __init__(
        self, sequence: DraftSequence, shape: TreeShape, price: RowPrice, *, context: int, nodes: int, depth: int
    ) -> None:
        self.sequence, self.context = sequence, context
        self.pending: tuple[int, ...] = ()
        """Committed tokens before the anchor that the first pass computes, too."""
        self.computed = 0
        """Number of nodes whose rows are in the draft cache."""
        self.first = 0
        """First node of the last pass."""
        self.frontier = [0]
        """Nodes of the last level to expand."""
        self.error: Exception | None = None
        """The error that ended the tree, if any."""
        self._builder: TreeBuilder = sequence.builder()
        self._ranks: list[Ranks] = [()]
        self._shape, self._nodes, self._depth = shape, nodes, depth
        self._price = sequence.price or price
        self._level = 0
        self._widths: list[int] = []
        """Maximum children of each node of the frontier."""

    @property
    def grows(self) -> bool:
        """Whether another level can be drafted."""
        return bool(self.frontier) and self._level < self._depth

    @property
    def parents(self) -> Sequence[int]:
        """Parent of each node."""
        return self._builder.parents

    def rows(self) -> SequenceRows:
        """Rows of the pass that computes the new nodes."""
        done = len(self.pending) + self.computed if self.computed else 0
        start = self.context - len(self.pending)
        return SequenceRows(self.sequence.key, start, self.pending, self._builder.grown(), skip=done)

    def fail(self, error: Exception) -> None:
        """Stop growing; the tree keeps its nodes."""
        self.frontier, self.error = [], error

    def begin_level(self, rows: Sequence[int], causal: bool) -> Frontier:
        """Mark all nodes as computed, and return the frontier that needs proposals.

        ``rows`` has the row of the logits for each newly computed node; if ``causal``, the shape must not depend on
        drawn tokens.
        """
        self.first, self.computed = self.computed, len(self._builder)
        self._level += 1
        self._widths = [self._shape.width(self._ranks[node], causal) for node in self.frontier]
        paths = [self._builder.paths[node] for node in self.frontier]
        asked = [rows[node - self.first] for node in self.frontier]
        return Frontier(self.sequence.key, asked, paths, self.frontier, max(self._widths))

    def hang(self, picked: list[list[Proposal]] | Exception, causal: bool, source: int) -> None:
        """Add a level of proposals below the frontier; if something fails, the tokens drawn before stay."""
        try:
            if isinstance(picked, Exception):
                raise picked
            self._hang(picked, causal, source)
        except Exception as error:  # noqa: BLE001 - see Failures
            self.fail(error)

    def _hang(self, picked: list[list[Proposal]], causal: bool, source: int) -> None:
        builder, level = self._builder, set()
        for node, width, proposals in zip(self.frontier, self._widths, picked, strict=True):
            for rank, (token, probability, q, removed) in enumerate(proposals[:width]):
                if causal and len(builder) >= self._nodes:
                    break
                share = 1.0 if causal else probability
                if not self._price.worth(builder.survival, builder.survival[node] * share):
                    break  # and so are all that follow
                level.add(builder.add(node, token, survival=share, source=source, q=q, removed=removed))
                if len(builder) > len(self._ranks):
                    self._ranks.append((*self._ranks[node], rank))
        self.frontier = self._worth_expanding(level, causal)

    def _worth_expanding(self, level: set[int], causal: bool) -> list[int]:
        beam = None if causal else self._shape.beam
        best = level if len(level) < 2 else sorted(level, key=lambda node: (-self._builder.survival[node], node))[:beam]
        return sorted(node for node in best if self._shape.width(self._ranks[node], causal))

    def finish(self) -> TokenTree:
        """The tree; above its budget, only the likeliest nodes."""
        tree = self._builder.build()
        if len(tree) <= self._nodes:
            return tree
        best = heapq.nsmallest(self._nodes, range(len(tree)), key=lambda node: (-tree.survival[node], node))
        return tree.subtree(sorted(best))

    def rows_of(self, tokens: Sequence[int]) -> list[int]:
        """Rows in the draft cache, counted from the anchor's, of a path of accepted tokens, as far as computed.

        The path may come from a tree this one was merged into, so it is followed by token.
        """
        return list(takewhile(lambda node: node < self.computed, self._builder.walk(tokens)))


def grow_level(
    context: DraftContext,
    growing: Sequence[Growth],
    logits: torch.Tensor,
    rows: Iterable[Sequence[int]],
    source: int = 0,
) -> None:
    """Add a level of proposals below every tree's frontier.

    ``logits`` are float [rows, vocabulary]; ``rows`` has, for each tree, the row of each newly computed node;
    ``source`` is the drafter's index in a merged tree.
    """
    frontiers = [growth.begin_level(own, context.causal) for growth, own in zip(growing, rows, strict=True)]
    for growth, picked in zip(growing, context.pick(logits, frontiers, source), strict=True):
        growth.hang(picked, context.causal, source)


def node_rows(passed: Sequence[SequenceRows]) -> list[range]:
    """Rows of a pass's logits that belong to each sequence's nodes."""
    counts = [0 if one.tree is None else min(one.rows, len(one.tree.tokens)) for one in passed]
    return [range(first, last) for first, last in pairwise(accumulate(counts, initial=0))]
