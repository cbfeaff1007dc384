"""The paged cache against a model of it that is nothing but lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.kv.pool import KVPool, PagedCache
from outrider.kv.state import Kept, LayerStore

PAGES, PAGE_SIZE, HEADS, WIDTH = 12, 4, 2, 3
KEYS = st.sampled_from(["a", "b", "c", "d"])


class CacheMachine(RuleBasedStateMachine):
    """Rows carry serial numbers; the naive model keeps them in one list per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedCache(PAGES, PAGE_SIZE)
        rows = torch.zeros(HEADS, 1, WIDTH)
        self.cache.layers = {0: LayerStore(self.cache.slots, rows, rows), 1: LayerStore(self.cache.slots, rows, rows)}
        self.rows: dict[str, list[int]] = {}
        self.pages: dict[str, int] = {}
        self.serial = 0

    @rule(key=KEYS, count=st.integers(1, 9))
    def extend_and_write(self, key: str, count: int) -> None:
        held = self.rows.get(key, [])
        wanted = max(self.pages.get(key, 0), -(-(len(held) + count) // PAGE_SIZE))
        missing = max(0, sum(self.pages.values()) - self.pages.get(key, 0) + wanted - PAGES)
        assert self.cache.shortage(key, len(held) + count) == missing
        before = self.cache.free_rows
        assert self.cache.extend(key, len(held) + count) == (not missing)
        if missing:
            assert self.cache.free_rows == before
            return
        self.pages[key] = wanted
        for row in range(len(held), len(held) + count):
            self.serial += 1
            for number, layer in self.cache.layers.items():
                layer.keys[:, self.cache.table(key).slot(row)] = self.serial + 0.25 * number
                layer.values[:, self.cache.table(key).slot(row)] = -self.serial - 0.25 * number
            held.append(self.serial)
        self.rows[key] = held

    @precondition(lambda self: any(self.rows.values()))
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """Some rows of several sequences, at once."""
        kept = []
        for key in data.draw(st.permutations(sorted(key for key, rows in self.rows.items() if rows))):
            rows = self.rows[key]
            start = data.draw(st.integers(0, len(rows) - 1))
            stay = sorted(data.draw(st.sets(st.integers(0, len(rows) - start - 1))))
            kept.append(Kept(key, start, stay))
            self.rows[key] = rows[:start] + [rows[start + row] for row in stay]
        self.cache.commit(kept)

    @rule(key=KEYS)
    def release(self, key: str) -> None:
        self.cache.release(key)
        self.rows.pop(key, None)
        self.pages.pop(key, None)
        assert not self.cache.holds(key)

    @invariant()
    def every_row_is_where_the_table_says(self) -> None:
        self.cache.check()
        assert self.cache.free_rows == (PAGES - sum(self.pages.values())) * PAGE_SIZE
        for key, rows in self.rows.items():
            table = self.cache.table(key)
            slots = table.slots(0, len(rows))
            assert slots.tolist() == [table.slot(row) for row in range(len(rows))]
            neighbours = zip(table.pages, table.pages[1:], strict=False)
            assert table.contiguous == all(right == left + 1 for left, right in neighbours)
            expected = torch.tensor(rows, dtype=torch.float32).view(1, -1, 1).expand(HEADS, -1, WIDTH)
            for number, layer in self.cache.layers.items():
                assert torch.equal(layer.keys[:, slots], expected + 0.25 * number)
                assert torch.equal(layer.values[:, slots], -expected - 0.25 * number)


CacheMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCache = CacheMachine.TestCase


def test_a_contiguous_sequence_is_read_in_place() -> None:
    cache = PagedCache(PAGES, PAGE_SIZE)
    assert cache.extend("a", 10)
    store = LayerStore(cache.slots, torch.zeros(HEADS, 1, WIDTH), torch.zeros(HEADS, 1, WIDTH))
    table = cache.table("a")
    view = store.keys[:, table.slot(0) : table.slot(0) + 10]
    assert table.contiguous
    assert view.untyped_storage().data_ptr() == store.keys.untyped_storage().data_ptr()


def test_sequences_that_grow_together_stay_contiguous() -> None:
    cache = PagedCache(pages=64, page_size=4)
    for rows in range(1, 30):
        for key in "abcd":
            assert cache.extend(key, rows)
    assert all(cache.table(key).contiguous for key in "abcd")


def test_a_full_cache_still_gives_every_page() -> None:
    cache = PagedCache(pages=7, page_size=2)
    for key, rows in {"a": 3, "b": 2, "c": 5, "d": 2}.items():
        assert cache.extend(key, rows)
    assert cache.free_rows == 0 and not cache.extend("d", 3)
    cache.release("b")
    assert cache.extend("d", 3)
    cache.check()


def test_a_page_owned_twice_is_named() -> None:
    cache = PagedCache(pages=4, page_size=2)
    assert cache.extend("a", 2) and cache.extend("b", 2)
    shared = cache.table("a").pages[0]
    cache.table("b").pages[0] = shared
    with pytest.raises(AssertionError, match=rf"owned twice: \[{shared}\]"):
        cache.check()


def test_each_model_has_equally_many_rows_of_its_own() -> None:
    pool = KVPool(rows=10, page_size=4)
    assert pool.cache("target").slots == pool.cache("draft").slots == 12
    assert pool.cache("target") is pool.cache("target")
    assert pool.cache("draft").extend("request", 3)
    assert not pool.cache("target").holds("request")
    pool.check()
