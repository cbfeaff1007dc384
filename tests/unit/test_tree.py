"""Draft trees: what is refused, what merging keeps, and how rows are laid out, against slow references."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.tree import (
    NO_PARENT,
    Candidate,
    SequenceRows,
    TokenTree,
    TreeBatch,
    TreeBuilder,
    root_only,
)

Draws = list[tuple[int, int, float]]


@st.composite
def draws(draw: st.DrawFn) -> Draws:
    """(which earlier node to hang it on, token, survival), few tokens so that duplicates are common."""
    one = st.tuples(st.integers(0, 63), st.integers(0, 3), st.floats(0, 1))
    return draw(st.lists(one, max_size=24))


def grown(items: Draws, source: int = 0, anchor: int = 9) -> tuple[TokenTree, Counter[tuple[int, ...]]]:
    """A tree of these draws, and how often each path was drawn."""
    builder = TreeBuilder(anchor)
    drawn: Counter[tuple[int, ...]] = Counter()
    for where, token, survival in items:
        node = builder.add(where % len(builder), token, survival=survival, source=source)
        drawn[builder.paths[node]] += 1
    return builder.build(), drawn


def multiplicities(tree: TokenTree) -> Counter[tuple[int, ...]]:
    """How many candidates each path has."""
    return Counter(tree.paths[candidate.node] for candidate in tree.candidates)


@given(draws())
def test_a_grown_tree_keeps_what_every_reader_relies_on(items: Draws) -> None:
    tree, drawn = grown(items)
    assert tree.tokens[0] == 9 and tree.parents[0] == NO_PARENT
    assert len(set(tree.paths)) == len(tree)
    assert set(tree.paths) == {(), *drawn}
    assert multiplicities(tree) == drawn
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert parent < node
        assert tree.depths[node] == tree.depths[parent] + 1 == len(tree.paths[node])
        assert tree.paths[node] == (*tree.paths[parent], tree.tokens[node])
        assert tree.survival[node] <= tree.survival[parent]
        assert node in tree.children[parent]
        assert tree.child(parent, tree.tokens[node]) == node
    assert sum(map(len, tree.children)) == len(tree) - 1
    assert tree.is_chain == all(len(children) <= 1 for children in tree.children)
    assert tree.child(0, 99) is None


@given(draws())
def test_siblings_are_the_draws_below_a_node_in_order(items: Draws) -> None:
    tree, _ = grown(items)
    for node in range(len(tree)):
        below = [c for c in tree.candidates if tree.parents[c.node] == node]
        assert tree.siblings(node) == below
        assert {c.node for c in below} == set(tree.children[node])


@given(draws(), draws())
def test_merging_keeps_every_draw_with_its_law(first: Draws, second: Draws) -> None:
    parts = [grown(first)[0], grown(second)[0]]
    builder = TreeBuilder(9)
    for source, part in enumerate(parts):
        builder.graft(part, source)
    tree = builder.build()
    assert set(tree.paths) == set(parts[0].paths) | set(parts[1].paths)
    assert multiplicities(tree) == multiplicities(parts[0]) + multiplicities(parts[1])
    for source, part in enumerate(parts):
        kept = [tree.paths[c.node] for c in tree.candidates if c.source == source]
        assert kept == [part.paths[c.node] for c in part.candidates]


def test_merging_keeps_laws_and_what_was_removed() -> None:
    laws = [np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.1, 0.8])]
    builder = TreeBuilder(7)
    for source, q in enumerate(laws):
        one = TreeBuilder(7)
        one.add(0, 2, q=q)
        one.add(0, source, q=q, removed=(2,))
        builder.graft(one.build(), source)
    tree = builder.build()
    assert tree.paths == ((), (2,), (0,), (1,))
    assert [(c.node, c.source, c.removed) for c in tree.candidates] == [
        (1, 0, ()),
        (2, 0, (2,)),
        (1, 1, ()),
        (3, 1, (2,)),
    ]
    assert all(c.q is laws[c.source] for c in tree.candidates)


@given(draws(), st.data())
def test_a_subtree_keeps_paths_and_their_draws(items: Draws, data: st.DataObject) -> None:
    tree, drawn = grown(items)
    keep = [0]
    for node in range(1, len(tree)):
        if tree.parents[node] in keep and data.draw(st.booleans()):
            keep.append(node)
    small = tree.subtree(keep)
    assert small.paths == tuple(tree.paths[node] for node in keep)
    assert multiplicities(small) == Counter({path: drawn[path] for path in small.paths if path})


def test_a_chain_hangs_below_the_last_node() -> None:
    tree = TreeBuilder(1).chain([4, 4, 5]).build()
    assert tree.is_chain
    assert tree.paths[-1] == (4, 4, 5)
    assert all(candidate.q is None for candidate in tree.candidates)


@pytest.mark.parametrize(
    ("tokens", "parents", "survival", "nodes", "message"),
    [
        ((), (), (), (), "anchor"),
        ((1, 2), (NO_PARENT,), (1.0, 1.0), (1,), "one parent"),
        ((1, 2), (NO_PARENT, 0), (1.0,), (1,), "survival"),
        ((1,), (0,), (1.0,), (), "precede"),
        ((1, 2), (NO_PARENT, 1), (1.0, 1.0), (1,), "precede"),
        ((1, 2, 3), (NO_PARENT, 2, 0), (1.0, 1.0, 1.0), (1, 2), "precede"),
        ((1, 2, 2), (NO_PARENT, 0, 0), (1.0, 1.0, 1.0), (1, 2), "same token"),
        ((1, 2), (NO_PARENT, 0), (1.0, 1.0), (), "candidate"),
        ((1,), (NO_PARENT,), (1.0,), (1,), "candidate"),
        ((1, 2), (NO_PARENT, 0), (1.0, 1.0), (0, 1), "candidate"),
    ],
)
def test_what_is_no_tree_is_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], survival: tuple[float, ...], nodes: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TokenTree(tokens, parents, survival, tuple(map(Candidate, nodes)))


@st.composite
def sequences(draw: st.DrawFn) -> SequenceRows:
    """What one sequence puts into a pass: forced tokens, a tree, or both."""
    forced = tuple(draw(st.lists(st.integers(10, 20), max_size=5)))
    tree = grown(draw(draws()))[0] if not forced or draw(st.booleans()) else None
    return SequenceRows("key", draw(st.integers(0, 30)), forced, tree, draw(st.booleans()))


@st.composite
def partly_computed(draw: st.DrawFn) -> SequenceRows:
    """The same with the first rows of the layout computed by an earlier pass."""
    sequence = draw(sequences())
    return sequence._replace(skip=draw(st.integers(0, sequence.tail)))


def naive_history(sequence: SequenceRows, row: int) -> list[int]:
    """The new rows that make up the text up to a row, that row last: by following parents, one step at a time."""
    forced = len(sequence.forced)
    if row < forced:
        return list(range(row + 1))
    assert sequence.tree is not None
    node, path = row - forced, []
    while node != NO_PARENT:
        path.append(forced + node)
        node = sequence.tree.parents[node]
    return [*range(forced), *reversed(path)]


@given(st.lists(partly_computed(), min_size=1, max_size=4))
def test_packed_rows_stand_where_following_parents_puts_them(items: list[SequenceRows]) -> None:
    batch = TreeBatch.pack(items)
    assert len(batch.tokens) == len(batch.positions) == sum(item.rows for item in items)
    for index, (item, start) in enumerate(zip(items, batch.starts, strict=True)):
        own = [*item.forced, *(item.tree.tokens if item.tree else ())]
        assert batch.tokens[start : start + item.rows].tolist() == own[item.skip :]
        visible = batch.visible(index)
        assert visible.shape == (item.rows, item.tail)
        for row in range(item.rows):
            history = naive_history(item, item.skip + row)
            assert int(batch.positions[start + row]) == item.context + len(history) - 1
            assert visible[row].nonzero().flatten().tolist() == sorted(history)


@given(st.lists(sequences(), min_size=1, max_size=4))
def test_wanted_logits_find_their_way_back(items: list[SequenceRows]) -> None:
    batch = TreeBatch.pack(items)
    logits = batch.wanted.double().unsqueeze(1)  # each row's logits are its own number
    for index, (item, start) in enumerate(zip(items, batch.starts, strict=True)):
        forced, nodes = len(item.forced), len(item.tree) if item.tree else 0
        tree_rows = batch.tree_logits(logits, index).flatten().tolist()
        assert tree_rows == list(range(start + forced, start + forced + nodes))
        wanted_forced = list(range(start, start + forced)) if item.all_logits else []
        assert batch.forced_logits(logits, index).flatten().tolist() == wanted_forced


def test_plain_decoding_is_the_anchor_alone() -> None:
    tree = root_only(5)
    assert (len(tree), tree.is_chain, tree.candidates) == (1, True, ())
