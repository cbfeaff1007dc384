"""Draft trees, and the flat batch of rows of one forward pass.

Terms: the *anchor* (node 0, the root) is the last committed token; a *node* is one drafted token; a *row* is one
position of a forward pass.  *Forced* rows are committed tokens without keys and values yet.  A prompt's chunk consists
of forced rows, so prefill needs no code path of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from outrider.law import Law

NO_PARENT = -1


class Candidate(NamedTuple):
    """One draw of a drafter; two may share a node, so merged trees keep multiplicities for multi-step."""

    node: int
    source: int = 0
    """Index of the drafter in a merged tree."""
    q: Law | None = None
    """The law the token was drawn from, before its siblings; None is a point mass."""
    removed: tuple[int, ...] = ()
    """Sibling tokens drawn before it without replacement: its law is q without them, renormalised."""


@dataclass(frozen=True, eq=False)
class TokenTree:
    """What one sequence drafts in one round; node 0 is the anchor.

    Raises:
        ValueError: a parent does not precede its child, siblings share a token, lengths differ, or an index is no int.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]
    """Estimated probability that the path to the node is accepted; never rises along a path."""
    candidates: tuple[Candidate, ...]
    """All draws in the order they were made, which is also the order of the acceptance tests."""
    forced: frozenset[int] = frozenset()
    """Nodes that a grammar forced; no drafter proposed them, and there is none of a drafter's below them."""

    def __post_init__(self) -> None:
        """Check the tree."""
        for name in ("tokens", "parents", "survival", "candidates"):
            if type(value := getattr(self, name)) is not tuple:
                object.__setattr__(self, name, tuple(value))
        parents, nodes = self.parents, tuple([item.node for item in self.candidates])
        if {*map(type, parents), *map(type, nodes), *[type(item.source) for item in self.candidates]} - {int}:
            raise ValueError("the parents of a tree, and the nodes and sources of its candidates, are ints")
        count = len(self.tokens)
        if count == 0 or not count == len(parents) == len(self.survival):
            raise ValueError("a tree has an anchor, and one parent and one survival per node")
        chain = _chain(count)
        if parents == chain["parents"]:
            self.__dict__.update(chain)  # fills the cached properties below
        elif parents[0] != NO_PARENT or any(not 0 <= p < i for i, p in enumerate(parents) if i):
            raise ValueError(f"every parent must precede its child: {parents}")
        elif len(set(zip(parents, self.tokens, strict=True))) != count:
            raise ValueError("two children of one node hold the same token")
        if nodes != chain["depths"][1:] and set(nodes) != set(range(1, count)):
            raise ValueError("every drafted node needs a candidate, and every candidate a drafted node")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the anchor."""
        depths = [0] * len(self)
        for node in range(1, len(self)):
            depths[node] = depths[self.parents[node]] + 1
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Child nodes of each node, in order."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node in range(1, len(self)):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Drafted tokens from the anchor, without it, to each node."""
        paths: list[tuple[int, ...]] = [()]
        for node in range(1, len(self)):
            paths.append((*paths[self.parents[node]], self.tokens[node]))
        return tuple(paths)

    @cached_property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def child(self, node: int, token: int) -> int | None:
        """Child of a node with this token."""
        for child in self.children[node]:
            if self.tokens[child] == token:
                return child
        return None

    def subtree(self, keep: Sequence[int]) -> TokenTree:
        """Make the tree of some nodes, renumbered; ``keep`` is ascending, with the anchor and each node's parent."""
        new = {old: index for index, old in enumerate(keep)}
        return TokenTree(
            tuple(self.tokens[node] for node in keep),
            tuple(new[self.parents[node]] if node else NO_PARENT for node in keep),
            tuple(self.survival[node] for node in keep),
            tuple(item._replace(node=new[item.node]) for item in self.candidates if item.node in new),
            frozenset(new[node] for node in self.forced if node in new),
        )

    def forcing(self, node: int, tokens: Sequence[int]) -> TokenTree:
        """Make the tree with a chain of forced tokens below a leaf."""
        first = len(self)
        nodes = range(first, first + len(tokens))
        return TokenTree(
            (*self.tokens, *tokens),
            (*self.parents, *(node if new == first else new - 1 for new in nodes)),
            (*self.survival, *[self.survival[node]] * len(tokens)),
            (*self.candidates, *map(Candidate, nodes)),
            self.forced.union(nodes),
        )

    def siblings(self, node: int) -> list[Candidate]:
        """The candidates below a node in the order they were drawn."""
        return [candidate for candidate in self.candidates if self.parents[candidate.node] == node]


@lru_cache
def _chain(count: int) -> dict[str, Any]:
    """Fields and properties of a chain with this many nodes."""
    return {
        "parents": tuple(range(NO_PARENT, count - 1)),
        "depths": tuple(range(count)),
        "children": tuple((node,) if node < count else () for node in range(1, count + 1)),
        "is_chain": True,
    }


class TreeBuilder:
    """Grows a tree node by node; a token drawn twice below a node is one node with two candidates."""

    def __init__(self, anchor: int) -> None:
        self.tokens, self.parents, self.survival = [anchor], [NO_PARENT], [1.0]
        self.paths: list[tuple[int, ...]] = [()]
        self._candidates: list[Candidate] = []
        self._index: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        parent: int,
        token: int,
        *,
        survival: float = 1.0,
        source: int = 0,
        q: Law | None = None,
        removed: tuple[int, ...] = (),
    ) -> int:
        """Add a token below a node, and return its node.

        Args:
            parent: the node.
            token: target token id.
            survival: estimated acceptance given the parent, in [0, 1].
            source: index of the drafter in a merged tree.
            q: the law it was drawn from; None for a point mass.
            removed: siblings drawn before it without replacement.
        """
        node = self._index.get((parent, token))
        if node is None:
            node = self._index[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.survival.append(self.survival[parent] * min(1.0, max(0.0, survival)))
            self.paths.append((*self.paths[parent], token))
        self._candidates.append(Candidate(node, source, q, removed))
        return node

    def chain(self, tokens: Iterable[int]) -> TreeBuilder:
        """Add a chain of point-mass tokens below the last node."""
        node = len(self) - 1
        for token in tokens:
            node = self.add(node, token)
        return self

    def walk(self, tokens: Iterable[int]) -> Iterator[int]:
        """Nodes of a path of tokens from the anchor, as far as the tree has it."""
        node: int | None = 0
        for token in tokens:
            node = self._index.get((node, token)) if node is not None else None
            if node is None:
                return
            yield node

    def graft(self, tree: TokenTree, source: int) -> None:
        """Merge another tree with the same anchor: equal paths become one node, and every draw keeps its law."""
        where = {0: 0}
        for candidate in tree.candidates:
            node, parent = candidate.node, tree.parents[candidate.node]
            above = tree.survival[parent]
            share = tree.survival[node] / above if above > 0 else 0.0
            where[node] = self.add(
                where[parent],
                tree.tokens[node],
                survival=share,
                source=source,
                q=candidate.q,
                removed=candidate.removed,
            )

    def grown(self) -> TokenTree:
        """The unfinished tree, without draws and unchecked, for the passes of its drafter."""
        tree, count = TokenTree.__new__(TokenTree), len(self.tokens)
        tree.__dict__.update(tokens=tuple(self.tokens), parents=tuple(self.parents), survival=(), candidates=())
        if tree.parents == _chain(count)["parents"]:
            tree.__dict__.update(_chain(count))
        return tree

    def build(self) -> TokenTree:
        """The finished tree."""
        return TokenTree(tuple(self.tokens), tuple(self.parents), tuple(self.survival), tuple(self._candidates))


def root_only(anchor: int) -> TokenTree:
    """Make a tree with only the anchor, for plain decoding."""
    return TokenTree((anchor,), (NO_PARENT,), (1.0,), ())


class SequenceRows(NamedTuple):
    """The rows of one sequence in a pass: forced tokens first, then the tree's nodes.

    ``tree`` is None while the forced rows do not reach the last committed token.
    """

    key: str
    """Key of the sequence's page table."""
    context: int
    """Number of its rows in the cache; the first new row has this position."""
    forced: tuple[int, ...]
    tree: TokenTree | None
    all_logits: bool = False
    """Whether forced rows need logits, too (prompt logprobs)."""
    skip: int = 0
    """Number of these rows that an earlier pass computed and nothing committed: older nodes of a growing tree."""
    together: bool = False
    """Whether its forced rows all see each other, as a block drafter's do."""

    @property
    def tail(self) -> int:
        """Number of its rows, skipped ones included."""
        return len(self.forced) + (0 if self.tree is None else len(self.tree.tokens))

    @property
    def rows(self) -> int:
        """Number of its rows in the pass."""
        return self.tail - self.skip

    @property
    def tail_tokens(self) -> tuple[int, ...]:
        """Token of each row, skipped ones included."""
        return self.forced if self.tree is None else self.forced + self.tree.tokens

    @property
    def tail_positions(self) -> Sequence[int]:
        """Absolute position of each row, skipped ones included."""
        if self.tree is None or self.tree.is_chain:
            return range(self.context, self.context + self.tail)
        first = self.context + len(self.forced)
        return [*range(self.context, first), *[first + depth for depth in self.tree.depths]]


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """The rows of one pass over all sequences, flat."""

    sequences: tuple[SequenceRows, ...]
    starts: tuple[int, ...]
    """First row of each sequence."""
    tokens: torch.Tensor
    """int64 [rows]."""
    positions: torch.Tensor
    """int64 [rows], absolute; siblings share one."""
    wanted: torch.Tensor
    """int64 [wanted rows], rows that need logits, in order."""
    wanted_starts: tuple[int, ...]
    """First of each sequence's wanted rows."""
    _tails: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def pack(cls, sequences: Sequence[SequenceRows], device: torch.device | str = "cpu") -> TreeBatch:
        """Make a batch from the rows of each sequence, in order."""
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        starts: list[int] = []
        wanted_starts: list[int] = []
        for sequence in sequences:
            start, skip = len(tokens), sequence.skip
            starts.append(start)
            wanted_starts.append(len(wanted))
            tokens += sequence.tail_tokens[skip:]
            positions += sequence.tail_positions[skip:]
            unwanted = 0 if sequence.all_logits else max(0, len(sequence.forced) - skip)
            wanted += range(start + unwanted, len(tokens))
        return cls(
            tuple(sequences),
            tuple(starts),
            *(_integers(tokens, device), _integers(positions, device), _integers(wanted, device)),
            tuple(wanted_starts),
        )

    def first_tree_row(self, index: int) -> int:
        """First wanted row of one sequence's tree."""
        sequence = self.sequences[index]
        return self.wanted_starts[index] + (len(sequence.forced) if sequence.all_logits else 0)

    def tree_logits(self, logits: torch.Tensor, index: int) -> torch.Tensor:
        """Rows of ``logits`` [wanted rows, vocabulary] that belong to one sequence's tree."""
        start, tree = self.first_tree_row(index), self.sequences[index].tree
        return logits[start : start + (len(tree) if tree else 0)]

    def forced_logits(self, logits: torch.Tensor, index: int) -> torch.Tensor:
        """Rows of ``logits`` that belong to one sequence's forced tokens; empty unless it asked for them."""
        sequence = self.sequences[index]
        start = self.wanted_starts[index]
        return logits[start : start + (len(sequence.forced) if sequence.all_logits else 0)]

    def visible(self, index: int) -> torch.Tensor:
        """Bool [rows, rows]: which new rows of a sequence each of its rows sees, its ancestors and itself."""
        found = self._tails.get(index)
        if found is None:
            found = self._tails[index] = _ancestors(self.sequences[index]).to(self.tokens.device)
        return found


def _integers(values: Sequence[int], device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)  # four times as fast as torch.tensor


def _ancestors(sequence: SequenceRows) -> torch.Tensor:
    seen = torch.ones(sequence.tail, sequence.tail, dtype=torch.bool)
    if sequence.together:
        return seen
    seen = seen.tril()
    tree, forced = sequence.tree, len(sequence.forced)
    if tree is not None and not tree.is_chain:
        for node in range(1, len(tree)):
            row, parent = forced + node, forced + tree.parents[node]
            seen[row] = seen[parent]
            seen[row, row] = True
    return seen[sequence.skip :]
