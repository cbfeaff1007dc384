"""Batches, the teacher, and the draft vocabulary."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from captured import LAYERS, InMemory, Text, TinyTarget, teacher, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, tiny_native
from wrapped import Wrapped

from outrider.errors import ConfigError
from outrider.models.base import TargetModel
from outrider.train.features.batches import Batch, Batches, BatchShape, held_out_batches, shifted
from outrider.train.features.teacher import Teacher
from outrider.train.features.vocabulary import draft_columns, draft_vocabulary


def text(length: int, start: int, name: int = 0) -> Text:
    return Text(
        [name] * length, start, {0: torch.full((length, 2), float(name)).half(), 1: torch.zeros(length, 3).half()}
    )


class Counted:
    """Shards of numbered texts, counting reads."""

    def __init__(self, lengths: list[list[int]]) -> None:
        names = iter(range(1, 1000))
        self.pieces = [[text(length, 1, next(names)) for length in piece] for piece in lengths]
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.pieces)

    def read(self, shard: int) -> list[Text]:
        self.reads.append(shard)
        return self.pieces[shard]


def names_of(batch: Batch) -> list[int]:
    return batch.tokens[:, 0].tolist()


def test_rows_count_where_the_next_token_is_the_answers() -> None:
    batch = BatchShape(layers=(0, 1), rows=64).pad([text(5, 2, 7), text(3, 1, 8)])
    assert batch.tokens.tolist() == [[7] * 5, [8, 8, 8, 0, 0]]
    assert batch.mask.tolist() == [[False, True, True, True, False], [True, True, False, False, False]]
    assert batch.lengths.tolist() == [5, 3]
    assert batch.features[0].dtype == torch.float32
    assert batch.features[0][1, :, 0].tolist() == [8, 8, 8, 0, 0]
    assert batch.final is batch.features[1]


def test_long_texts_are_cut_and_texts_without_an_answer_are_left_out() -> None:
    shape = BatchShape(layers=(0,), max_length=4)
    batch = shape.pad([text(9, 2)])
    assert batch.mask.tolist() == [[False, True, True, False]]
    assert [shape.learnable(text(9, start)) for start in (0, 1, 3, 4)] == [False, True, True, False]
    assert not shape.learnable(text(3, 3))
    with pytest.raises(ConfigError, match="no text has an answer that starts before token 4"):
        next(Batches(InMemory([text(9, 5)]), shape, seed=0))
    with pytest.raises(ConfigError, match="nothing to train on"):
        next(Batches(InMemory([]), shape, seed=0))
    with pytest.raises(ConfigError, match="no held-out text"):
        held_out_batches([text(9, 5)], shape)


def test_a_window_is_let_go_before_the_next_is_read() -> None:
    alive: list[weakref.ref[Text]] = []

    class Watched(Counted):
        def read(self, shard: int) -> list[Text]:
            assert not [text for text in alive if text() is not None], "two windows are in memory"
            found = [text(5, 2, shard)]
            alive.extend(map(weakref.ref, found))
            return found

    stream = Batches(Watched([[2], [2], [2]]), BatchShape(layers=(0,)), seed=0, window=1)
    assert len({names_of(next(stream))[0] for _ in range(3)}) == 3


lengths = st.lists(st.lists(st.integers(2, 40), min_size=0, max_size=12), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(lengths=lengths, seed=st.integers(0, 99), rows=st.integers(8, 100), window=st.integers(1, 3))
def test_an_epoch_holds_each_text_once_within_bounds(
    lengths: list[list[int]], seed: int, rows: int, window: int
) -> None:
    shards = Counted(lengths)
    total = sum(map(len, lengths))
    if not total:
        return
    stream = Batches(shards, BatchShape(layers=(0,), rows=rows), seed=seed, window=window)
    for epoch in range(2):
        seen: list[int] = []
        while len(seen) < total:
            batch = next(stream)
            assert batch.tokens.numel() <= rows or len(batch.tokens) == 1
            seen += names_of(batch)
        assert stream.position.epoch == epoch
        assert sorted(seen) == list(range(1, total + 1))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), read=st.integers(0, 30))
def test_a_place_is_found_again(seed: int, read: int) -> None:
    lengths = [[5, 9, 12, 7], [3, 30, 8], [], [11, 6, 2, 2, 2]]
    shape = BatchShape(layers=(0,), rows=24)
    first = Batches(Counted(lengths), shape, seed=seed, window=2)
    for _ in range(read):
        next(first)
    second = Batches(Counted(lengths), shape, seed=seed, window=2)
    second.position = first.position
    for _ in range(12):
        one, other = next(first), next(second)
        assert names_of(one) == names_of(other)
        assert one.seed == other.seed


def test_the_seed_decides_the_order_and_each_epoch_has_its_own() -> None:
    def order(seed: int, count: int) -> list[list[int]]:
        stream = Batches(Counted([[4] * 6] * 4), BatchShape(layers=(0,), rows=8), seed=seed)
        return [names_of(next(stream)) for _ in range(count)]

    assert order(1, 24) == order(1, 24)
    assert order(1, 12) != order(2, 12)
    assert order(1, 24)[:12] != order(1, 24)[12:]


def test_a_window_is_read_once() -> None:
    shards = Counted([[4] * 4] * 6)
    stream = Batches(shards, BatchShape(layers=(0,), rows=8), seed=0, window=2)
    for _ in range(12):
        next(stream)
    assert Counter(shards.reads) == dict.fromkeys(range(6), 1)


def test_batches_of_like_length_waste_little() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(10, 200, (400,), generator=generator).tolist()
    stream = Batches(Counted([lengths]), BatchShape(layers=(0,), rows=1000), seed=0)
    used = padded = seen = 0
    while seen < 400:
        batch = next(stream)
        seen, used, padded = seen + len(batch.tokens), used + int(batch.lengths.sum()), padded + batch.tokens.numel()
    assert used / padded > 0.9


def test_shifting_falls_off_the_end() -> None:
    values = torch.tensor([[1, 2, 3]])
    assert [shifted(values, by).tolist()[0] for by in (0, 1, 3, 9)] == [[1, 2, 3], [2, 3, 0], [0, 0, 0], [0, 0, 0]]


def test_the_teacher_gives_the_targets_logits_back() -> None:
    made, target = texts(3), TinyTarget()
    for one in made:
        logits = target.module(torch.tensor([one.tokens])).logits[0]
        torch.testing.assert_close(teacher().logits(one.features[LAYERS]), logits, atol=0.02, rtol=0.01)
        assert (
            teacher().best(one.features[LAYERS]).tolist()[one.answer_start - 1 : -1] == one.tokens[one.answer_start :]
        )


def test_the_teacher_on_some_tokens_and_with_a_cap() -> None:
    hidden = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))
    head = torch.randn(20, 8, generator=torch.Generator().manual_seed(2))
    ids = torch.tensor([3, 4, 19])
    plain, capped = Teacher(head, head), Teacher(head, head, cap=5.0)
    torch.testing.assert_close(plain.logits(hidden, ids), (hidden @ head.T)[..., ids])
    torch.testing.assert_close(plain.logits(hidden), hidden @ head.T)
    torch.testing.assert_close(capped.logits(hidden, ids), 5 * torch.tanh((hidden @ head.T)[..., ids] / 5))
    assert torch.equal(capped.best(hidden), (hidden @ head.T).argmax(-1))
    assert torch.equal(plain.embed(torch.tensor([[2]])), head[2].view(1, 1, 8))


@pytest.mark.parametrize("make", [tiny_model, tiny_native])
def test_the_teacher_has_the_targets_matrices(make: Callable[[], TargetModel]) -> None:
    target = make()
    found = Teacher.of(target)
    hidden = torch.randn(5, target.width, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(found.logits(hidden), target.unembed(hidden), atol=0.1, rtol=0.02)  # eight bits
    assert torch.equal(found.embed(torch.tensor([3, 9])), target.embed(torch.tensor([3, 9])))


class Capped(Wrapped):
    """A target that bends its logits, as Gemma 2 does."""

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        return 30 * torch.tanh(self.target.unembed(hidden) / 30)


def test_the_teacher_finds_the_targets_cap() -> None:
    target = Capped(tiny_model())
    hidden = 20 * torch.randn(5, target.width, generator=torch.Generator().manual_seed(4))
    assert target.unembed(hidden).abs().max() > 15
    torch.testing.assert_close(Teacher.of(target).logits(hidden), target.unembed(hidden))


def test_the_most_frequent_tokens_make_the_draft_vocabulary() -> None:
    found = draft_vocabulary([[5, 5, 5, 9], [9, 2, 7]], 4, 12, always=[11])
    assert found.ids.tolist() == [2, 5, 9, 11]  # 2 and 7 stand once each: the lower wins
    assert (found.covered, found.total) == (6, 7)
    assert str(found) == "draft vocabulary: 4 tokens cover 85.71% of 7 answer tokens"
    assert draft_vocabulary([[5]], 4, 12).ids.tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize("size", [0, 1, 13])
def test_impossible_draft_vocabularies_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="must have from 2 to 12 tokens"):
        draft_vocabulary([[1]], size, 12, always=[3, 4])


@settings(max_examples=30, deadline=None)
@given(ids=st.sets(st.integers(0, 30), min_size=1), tokens=st.lists(st.integers(0, 30), min_size=1))
def test_places_in_a_draft_vocabulary(ids: set[int], tokens: list[int]) -> None:
    listed = sorted(ids)
    columns, present = draft_columns(torch.tensor(listed), torch.tensor(tokens))
    for token, column, here in zip(tokens, columns.tolist(), present.tolist(), strict=True):
        assert here == (token in ids)
        assert column == (listed.index(token) if here else 0)
