"""How a tree grows level by level, whatever network answers for its nodes.

A dynamic tree follows EAGLE-2 (Li et al. 2024, §4): expand the likeliest nodes of each level, then keep the likeliest
of all.  A static one has the shape it was given.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Protocol

import torch

from outrider.control.price import RowPrice
from outrider.drafters.base import DraftContext, DraftSequence, Frontier, Proposal
from outrider.tree import SequenceRows, TokenTree, TreeBuilder

Ranks = tuple[int, ...]
"""Names a node of a shape: which of its parent's children it is, after which of its own parent's its parent is, …"""


class TreeShape(Protocol):
    """Which nodes of a tree have how many children."""

    @property
    def beam(self) -> int | None:
        """Nodes of a level that may have children; None is all."""
        ...

    def width(self, ranks: Ranks, causal: bool) -> int:
        """Children of a node.

        Args:
            ranks: the node.
            causal: whether the number must not depend on what was drawn.
        """
        ...


@dataclass(frozen=True)
class DynamicTree:
    """The likeliest nodes of each level get ``topk`` children each."""

    topk: int

    @property
    def beam(self) -> int:
        return self.topk

    def width(self, ranks: Ranks, causal: bool) -> int:
        """Where no draw may be looked at, only the anchor branches."""
        return 1 if causal and ranks else self.topk


@dataclass(frozen=True)
class StaticTree:
    """A shape given as data."""

    nodes: tuple[Ranks, ...]
    """Every drafted node."""

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
        """The shape whose nodes are most often right (Cai et al. 2024, §2.3).

        Args:
            chances: by depth and rank, how often the proposal of that rank is right if all before it were; falling.
            count: drafted nodes.
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
    """What went wrong while a tree grew, raised when its request is drafted for again.

    What had been drawn by then stands: under a ratio rule drawn tokens must be tested, since whether drafting goes on
    may depend on them.
    """

    def __init__(self) -> None:
        self._met: dict[str, Exception] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._met

    def note(self, key: str, error: Exception) -> None:
        """A request's tree ends where it stands."""
        self._met[key] = error

    def collect(self, growing: Iterable[Growth | None]) -> None:
        """Note what trees met that are finished."""
        for growth in growing:
            if growth is not None and growth.error is not None:
                self.note(growth.sequence.key, growth.error)

    def check(self, key: str) -> None:
        """Raise what the request met before; again and again, since who fails beside others is tried alone next."""
        if (error := self._met.get(key)) is not None:
            raise error

    def forget(self, key: str) -> None:
        """The request has ended."""
        self._met.pop(key, None)


class Growth:
    """One request's tree while it grows.

    Args:
        index: the request's place in the context.
        sequence: the request.
        shape: which nodes have how many children.
        price: which of them are worth their row.
        context: rows before the anchor's in the drafter's cache, computed or not.
        nodes: most nodes, anchor included.
        depth: most levels.
    """

    def __init__(
        self,
        index: int,
        sequence: DraftSequence,
        shape: TreeShape,
        price: RowPrice,
        *,
        context: int,
        nodes: int,
        depth: int,
    ) -> None:
        self.index, self.sequence, self.context = index, sequence, context
        self.pending: tuple[int, ...] = ()
        """Committed tokens before the anchor whose rows the first pass computes as well."""
        self.computed = 0
        """Nodes whose rows the draft cache holds."""
        self.first = 0
        """First of the nodes that the last pass computed."""
        self.frontier = [0]
        """Nodes of the last level that are worth expanding."""
        self.error: Exception | None = None
        """Why the tree ended where it stands, if something failed."""
        self._builder: TreeBuilder = sequence.builder()
        self._ranks: list[Ranks] = [()]
        self._shape, self._nodes, self._depth = shape, nodes, depth
        self._price = sequence.price or price
        self._level = 0
        self._widths: list[int] = []
        """Most children of each node of the frontier."""

    @property
    def room(self) -> bool:
        """Whether another level may be drafted."""
        return self._level < self._depth

    @property
    def parents(self) -> Sequence[int]:
        """Parent of each node."""
        return self._builder.parents

    def rows(self) -> SequenceRows:
        """The pass that computes every node not computed yet."""
        done = len(self.pending) + self.computed if self.computed else 0
        start = self.context - len(self.pending)
        return SequenceRows(self.sequence.key, start, self.pending, self._builder.grown(), skip=done)

    def fail(self, error: Exception) -> None:
        """End the tree where it stands."""
        self.frontier, self.error = [], error

    def begin_level(self, rows: Sequence[int], causal: bool) -> Frontier:
        """Count all nodes as computed, and ask for a level of proposals.

        Args:
            rows: row of the logits for each node that was not computed before.
            causal: whether the tree's shape must not depend on what was drawn.
        """
        self.first, self.computed = self.computed, len(self._builder)
        self._level += 1
        self._widths = [self._shape.width(self._ranks[node], causal) for node in self.frontier]
        paths = [self._builder.paths[node] for node in self.frontier]
        asked = [rows[node - self.first] for node in self.frontier]
        return Frontier(self.sequence.key, asked, paths, self.frontier, max(self._widths))

    def hang(self, picked: list[list[Proposal]] | Exception, causal: bool, source: int) -> None:
        """Hang a level of proposals below the frontier; whatever fails, what was drawn stands."""
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
        """The tree, cut to its most promising nodes where it outgrew its budget."""
        tree = self._builder.build()
        if len(tree) <= self._nodes:
            return tree
        best = heapq.nsmallest(self._nodes, range(len(tree)), key=lambda node: (-tree.survival[node], node))
        return tree.subtree(sorted(best))

    def rows_of(self, tokens: Sequence[int]) -> list[int]:
        """Draft cache rows, counted from the anchor's, of a path of accepted tokens, as far as they were computed.

        The path may come from a tree this one was merged into, so it is followed by token.
        """
        rows: list[int] = []
        for node in self._builder.walk(tokens):
            if node >= self.computed:
                break
            rows.append(node)
        return rows


def grow_level(
    context: DraftContext,
    growing: Sequence[Growth],
    logits: torch.Tensor,
    rows: Iterable[Sequence[int]],
    source: int = 0,
) -> None:
    """Hang a level of proposals below every tree's frontier.

    Args:
        context: turns logits into proposals.
        growing: the trees.
        logits: float [rows, vocabulary].
        rows: of each tree, the row for each node that was not computed before.
        source: which drafter of a merged tree this is.
    """
    frontiers = [growth.begin_level(own, context.causal) for growth, own in zip(growing, rows, strict=True)]
    for growth, picked in zip(growing, context.pick_all(logits, frontiers, source), strict=True):
        growth.hang(picked, context.causal, source)


def node_rows(passed: Sequence[SequenceRows]) -> list[range]:
    """The rows of a pass's logits that answer for each sequence's nodes."""
    counts = [0 if one.tree is None else min(one.rows, len(one.tree.tokens)) for one in passed]
    return [range(first, last) for first, last in pairwise(accumulate(counts, initial=0))]
