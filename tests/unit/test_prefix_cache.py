"""Shared pages against a model of them that is nothing but texts: what a row holds is the text up to it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.kv.pool import KVPool, PagedCache
from outrider.kv.prefix import PrefixIndex
from outrider.kv.state import Kept, LayerStore

PAGES, PAGE_SIZE = 10, 2
KEYS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
"""Two token ids, so that texts often begin alike."""


class SharingMachine(RuleBasedStateMachine):
    """Sequences with texts and salts of their own; a row holds the number of its salt and the text up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PagedCache(PAGES, PAGE_SIZE, shares=True)
        rows = torch.zeros(1, 1, 1)
        self.cache.layers = {0: LayerStore(self.cache.slots, rows, rows)}
        self.texts: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.salts: dict[str, str | None] = {}
        self.numbers: dict[tuple[str | None, tuple[int, ...]], int] = {}

    def number(self, key: str, text: list[int]) -> int:
        return self.numbers.setdefault((self.salts[key], tuple(text)), len(self.numbers) + 1)

    def started(self) -> list[str]:
        return sorted(self.texts)

    @rule(key=KEYS, text=TEXTS, left=st.integers(1, 3), salt=st.sampled_from([None, "one", "two"]))
    def begin(self, key: str, text: list[int], left: int, salt: str | None = None) -> None:
        if key in self.texts:
            return
        self.salts[key] = salt
        if salt is not None:
            self.cache.salts[key] = salt
        most = max(0, len(text) - left)
        known, free = self.cache.known_rows(text, most, salt), self.cache.free_rows
        found = self.cache.reuse(key, text, most)
        assert found == known <= most
        assert found % PAGE_SIZE == 0
        assert self.cache.free_rows >= free - found
        self.texts[key], self.computed[key] = list(text), found

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), count=st.integers(1, 5), share=st.booleans())
    def compute(self, data: st.DataObject, count: int, share: bool) -> None:
        """Rows of the text that are missing, and new tokens past it."""
        key = data.draw(st.sampled_from(self.started()))
        text, start = self.texts[key], self.computed[key]
        short = self.cache.shortage(key, start + count)
        assert self.cache.extend(key, start + count) == (short == 0)
        if short:
            return
        table = self.cache.table(key)
        assert start >= table.shared * PAGE_SIZE, "a shared page would be written"
        while len(text) < start + count:
            text.append(data.draw(st.integers(0, 1)))
        for row in range(start, start + count):
            self.cache.layers[0].keys[:, table.slot(row)] = self.number(key, text[: row + 1])
        self.computed[key] = start + count
        if share:
            self.cache.share(key, text, start + count)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), drafted=st.integers(1, 5))
    def draft(self, data: st.DataObject, drafted: int) -> None:
        """Rows of drafts, of which some are kept and moved together."""
        key = data.draw(st.sampled_from(self.started()))
        text, start = self.texts[key], self.computed[key]
        if len(text) != start or not self.cache.extend(key, start + drafted):
            return
        kept = sorted(data.draw(st.sets(st.integers(0, drafted - 1))))
        accepted = [data.draw(st.integers(0, 1)) for _ in kept]
        table = self.cache.table(key)
        for row in range(drafted):
            self.cache.layers[0].keys[:, table.slot(start + row)] = -1.0
        for place, row in enumerate(kept):
            self.cache.layers[0].keys[:, table.slot(start + row)] = self.number(key, text + accepted[: place + 1])
        self.cache.commit([Kept(key, start, kept)])
        text += accepted
        self.computed[key] = start + len(kept)
        self.cache.share(key, text, self.computed[key])

    @rule(key=KEYS, keep=st.booleans())
    def release(self, key: str, keep: bool) -> None:
        self.cache.release(key, keep=keep)
        self.texts.pop(key, None)
        self.computed.pop(key, None)
        self.cache.salts.pop(key, None)
        assert not self.cache.holds(key)

    @rule()
    def forget(self) -> None:
        self.cache.forget_prefixes()
        for key, text in self.texts.items():
            assert self.cache.known_rows(text, len(text), self.salts[key]) == 0

    @invariant()
    def every_row_holds_its_text(self) -> None:
        self.cache.check()
        owned = set()
        for key, text in self.texts.items():
            if not self.cache.holds(key):
                assert self.computed[key] == 0
                continue
            table = self.cache.table(key)
            owned |= set(table.pages)
            rows = self.computed[key]
            expected = [float(self.number(key, text[: row + 1])) for row in range(rows)]
            assert self.cache.layers[0].keys[0, table.slots(0, rows), 0].tolist() == expected
            assert table.shared * PAGE_SIZE <= rows
            neighbours = zip(table.pages, table.pages[1:], strict=False)
            assert table.contiguous == all(right == left + 1 for left, right in neighbours)
        assert self.cache.free_rows == (PAGES - len(owned)) * PAGE_SIZE


SharingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestSharing = SharingMachine.TestCase


def test_the_machine_sees_a_key_that_ignores_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: two texts that differ where the key does not look."""
    exact = PrefixIndex.page_text
    monkeypatch.setattr(PrefixIndex, "page_text", lambda self, tokens, page: (0, *exact(self, tokens, page)[1:]))
    machine = SharingMachine()
    for key, text in (("a", [0, 1, 0]), ("b", [1, 1, 0])):
        machine.begin(key, text, 1)
        if key == "a":
            machine.compute(_First(), 3, True)
    with pytest.raises(AssertionError):
        machine.every_row_holds_its_text()


class _First:
    """Stands for hypothesis' choices: takes the first."""

    def draw(self, strategy: st.SearchStrategy[object]) -> object:
        return "a"


def cache_with(*texts: list[int], pages: int = PAGES) -> PagedCache:
    """A cache in which each text was computed, in turn, and given back."""
    cache = PagedCache(pages, PAGE_SIZE, shares=True)
    for text in texts:
        compute(cache, "past", text)
        cache.release("past")
        cache.check()
    return cache


def compute(cache: PagedCache, key: str, text: list[int]) -> int:
    found = cache.reuse(key, text, len(text) - 1)
    assert cache.extend(key, len(text))
    cache.share(key, text, len(text))
    return found


def test_whole_pages_are_taken_over_and_only_as_far_as_texts_agree() -> None:
    cache = cache_with([1, 2, 3, 4, 5])
    for text, rows in (([1, 2, 3, 4, 9], 4), ([1, 2, 3, 9], 2), ([1, 9, 3, 4], 0), ([9, 2, 3, 4], 0), ([1], 0)):
        assert cache.known_rows(text, len(text)) == rows
    assert cache.known_rows([1, 2, 3, 4, 5], 3) == 2, "no more than is asked for"


def test_the_least_recently_used_text_goes_first_and_from_its_end() -> None:
    old, new = [1] * 6, [2] * 6
    cache = cache_with(old, new, pages=6)
    assert cache.free_rows == 12
    assert compute(cache, "again", old) == 4, "the last page is not full without its own row"
    cache.release("again")
    assert cache.extend("other", 2)
    assert cache.known_rows(new, 6) == 4, "the end of the text that was used last went"
    assert cache.known_rows(old, 6) == 6
    assert cache.extend("other", 8)
    assert (cache.known_rows(new, 6), cache.known_rows(old, 6)) == (0, 4)
    cache.check()


def test_pages_in_use_are_never_evicted() -> None:
    cache = cache_with([1] * 8, pages=6)
    assert cache.reuse("user", [1] * 8, 7) == 6
    assert cache.shortage("other", 6) == 0
    assert cache.shortage("other", 8) == 1
    assert not cache.extend("other", 8)
    assert cache.extend("other", 6)
    assert cache.known_rows([1] * 8, 8) == 6
    cache.check()


def test_two_that_computed_the_same_text_end_with_one_copy() -> None:
    cache = PagedCache(PAGES, PAGE_SIZE, shares=True)
    for key in "ab":
        assert cache.extend(key, 5)
    cache.share("a", [1, 2, 3, 4, 5], 5)
    before = cache.free_rows
    cache.share("b", [1, 2, 3, 4, 5], 5)
    assert cache.table("a").pages[:2] == cache.table("b").pages[:2]
    assert cache.table("a").pages[2] != cache.table("b").pages[2]
    assert cache.free_rows == before + 4
    cache.check()


def test_a_text_that_is_not_to_be_kept_takes_along_what_was_built_on_it() -> None:
    cache = cache_with([1] * 4)
    assert compute(cache, "bad", [1] * 6) == 4
    assert compute(cache, "on it", [1] * 8) == 6
    cache.release("on it")
    cache.release("bad", keep=False)
    assert cache.known_rows([1] * 8, 8) == 0
    assert cache.free_rows == cache.slots
    cache.check()


def test_what_is_forgotten_stays_with_those_who_use_it() -> None:
    cache = cache_with([1] * 5)
    assert cache.reuse("user", [1] * 5, 4) == 4
    cache.forget_prefixes()
    cache.check()
    assert cache.extend("user", 8)
    cache.share("user", [1] * 8, 8)
    assert cache.known_rows([1] * 8, 8) == 0
    cache.release("user")
    assert cache.free_rows == cache.slots
    cache.check()


def test_a_pool_shares_where_it_is_told_to_or_where_rows_are_invariant() -> None:
    for policy, shares in ((None, (True, False)), (True, (True, True)), (False, (False, False))):
        pool = KVPool(8, 2, policy)
        assert (pool.cache("one", row_invariant=True).shares, pool.cache("two").shares) == shares
    assert not KVPool(8, 2).cache("one", row_invariant=True).shares


@pytest.mark.parametrize("fault", ["count", "lost", "path", "order", "unowned", "full"])
def test_the_check_sees_each_kind_of_damage(fault: str) -> None:
    cache = cache_with([1, 2, 3, 4], [5, 6, 7, 8])
    compute(cache, "a", [1, 2, 9, 9])
    cache.check()
    index, table = cache._index, cache.table("a")
    if fault == "count":
        cache._owners[table.pages[0]] += 1
    elif fault == "lost":
        index._unowned.popitem()
    elif fault == "path":
        table.pages[0] = next(iter(index._unowned))
    elif fault == "order":
        index._unowned.move_to_end(next(iter(index._unowned)), last=True)
        index._unowned.move_to_end(next(iter(index._unowned)), last=True)
    elif fault == "unowned":
        index._unowned[table.pages[0]] = None
    else:
        table.node.text = (1,)
    with pytest.raises(AssertionError):
        cache.check()


def test_the_machine_sees_an_index_that_ignores_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: pages pass between salts."""
    monkeypatch.setattr(PrefixIndex, "edge", lambda self, tokens, page, salt: self.page_text(tokens, page))
    machine = SharingMachine()
    machine.begin("a", [0, 1, 0], 1, "one")
    machine.compute(_First(), 3, True)
    machine.begin("b", [0, 1, 0], 1, "two")
    with pytest.raises(AssertionError):
        machine.every_row_holds_its_text()


def test_a_salt_is_no_token() -> None:
    """Salts that spell token ids, and a text that begins like a salted one, stay apart."""
    cache = PagedCache(PAGES, PAGE_SIZE, shares=True)
    for key, salt in (("a", "1"), ("b", "2")):
        cache.salts[key] = salt
        assert compute(cache, key, [1, 2, 3]) == 0
    assert compute(cache, "c", [1, 2, 3]) == 0
    for salt in ("1", "2", None):
        assert cache.known_rows([1, 2, 3], 3, salt) == 2
    assert cache.known_rows([1, 2, 3], 3, "12") == 0
    cache.check()
