"""Paged keys and values: which sequence owns which page, and which rows a round keeps.

There is one cache per model, and one page table per request and model.  Rows of a sequence, left to right:

    0 ─── shared pages ───┬───── committed rows ───── computed ── rows of this pass ── end of the last page
    │ full, never written │  read by every row, written once  │ forced rows, then tree nodes, provisional until commit

A commit moves the accepted rows together behind ``computed``; nothing else is copied, and the next pass overwrites
rejected rows (:mod:`outrider.kv.state`).  A page full of committed rows is shared with sequences of equal text.  A page
without owners stays until its room is needed; the least recently used goes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import numpy as np

from outrider.kv.page_table import PageTable
from outrider.kv.prefix import PrefixIndex
from outrider.kv.state import Kept, LayerState

_UNSET: Final = -1
_State = TypeVar("_State", bound=LayerState)


class PagedCache:
    """All pages of one model; ``shares`` says whether sequences share pages of equal text."""

    index_type: type[PrefixIndex] = PrefixIndex

    def __init__(
        self, pages: int, page_size: int, *, shares: bool = False, salts: dict[str, str] | None = None
    ) -> None:
        self.page_size, self.shares, self._total = page_size, shares, pages
        self._free = set(range(pages))
        self._owners = [0] * pages
        self._tables: dict[str, PageTable] = {}
        self._index = self.index_type(page_size)
        self.salts = {} if salts is None else salts
        """Salt of each sequence that has one.  Only sequences of equal salts share pages.  All caches of a pool use
        one dict, so no drafter can forget it."""
        self.layers: dict[int, LayerState] = {}
        """State of each layer that has had a pass, by the model's number for it."""

    @property
    def slots(self) -> int:
        """Rows that fit in the whole cache."""
        return self._total * self.page_size

    @property
    def free_rows(self) -> int:
        """Rows in pages without owners, cached prefixes included."""
        return self._spare * self.page_size

    @property
    def _spare(self) -> int:
        return len(self._free) + self._index.unowned

    @property
    def _in_pages(self) -> bool:
        return all(layer.in_pages for layer in self.layers.values())

    def layer(self, number: int, make: Callable[[], _State]) -> _State:
        """Get a layer's state by its number in the model; ``make`` creates an empty one at the first call."""
        state = self.layers.get(number)
        if state is None:
            state = self.layers[number] = make()
        return cast(_State, state)

    def holds(self, key: str) -> bool:
        """Whether a sequence owns pages."""
        return key in self._tables

    def table(self, key: str) -> PageTable:
        """Page table of a sequence that owns pages."""
        return self._tables[key]

    def shortage(self, key: str, rows: int) -> int:
        """Number of missing pages for a sequence to hold this many rows; 0 if it can."""
        owned = self.owned_rows(key)
        if rows <= owned:
            return 0
        return max(0, -((owned - rows) // self.page_size) - self._spare)

    def owned_rows(self, key: str) -> int:
        """Rows in a sequence's pages."""
        table = self._tables.get(key)
        return table.rows if table else 0

    def most_rows(self, key: str) -> int:
        """Rows that a sequence could hold if it took every free page."""
        return self.owned_rows(key) + self._spare * self.page_size

    def extend(self, key: str, rows: int) -> bool:
        """Make room for a sequence's rows 0 … rows − 1; evicts cached prefixes if necessary.

        Returns:
            False, with nothing changed, if there are not enough free pages.
        """
        table = self._tables.get(key)
        if table is not None and rows <= table.rows:
            return True
        if self.shortage(key, rows):
            return False
        table = table or self._begin(key)
        self._evict(-(-rows // self.page_size) - len(table.pages) - len(self._free))
        while table.rows < rows:
            wish = table.pages[-1] + 1 if table.pages else _UNSET
            # The next page in memory keeps a sequence contiguous, so it can be read in place.
            page = wish if wish in self._free else self._start(-(-(rows - table.rows) // self.page_size))
            self._free.remove(page)
            self._owners[page] = 1
            table.add(page)
        return True

    def trim(self, key: str, rows: int) -> None:
        """Give back a sequence's pages behind its first rows, but for shared ones; unknown keys are ignored."""
        table = self._tables.get(key)
        while table is not None and table.rows - self.page_size >= rows and len(table.pages) > table.shared:
            self._disown(table.drop_last())

    def known_rows(self, tokens: Sequence[int], most: int, salt: str | None = None) -> int:
        """Rows that :meth:`reuse` would adopt for a sequence with this salt."""
        return len(self._index.match(tokens, most, salt)) * self.page_size

    def reuse(self, key: str, tokens: Sequence[int], most: int) -> int:
        """Start a sequence with the shared pages that hold its first rows, at most ``most``.

        Returns:
            The number of adopted rows, which are valid and must not be written.
        """
        found = self._index.match(tokens, most, self.salts.get(key))
        if found:
            table = self._begin(key)
            for node in found:
                assert node.page is not None
                self._own(node.page)
                table.add(node.page)
            table.node, table.shared = found[-1], len(found)
        return len(found) * self.page_size

    def share(self, key: str, tokens: Sequence[int], rows: int) -> None:
        """Share a sequence's full pages of committed rows; costs nothing until another page is full."""
        table = self._tables[key]
        while table.node is not None and (table.shared + 1) * self.page_size <= rows and self._in_pages:
            text, page = self._index.edge(tokens, table.shared, table.salt), table.pages[table.shared]
            known = table.node.children.get(text)
            if known is None:
                known = self._index.add(table.node, text, page)
            else:  # another sequence has computed the same rows: one copy is enough
                assert known.page is not None
                self._own(known.page)
                table.replace(table.shared, known.page)
                self._disown(page)
            table.node, table.shared = known, table.shared + 1

    def commit(self, kept: Sequence[Kept]) -> None:
        """Commit the rows of several sequences, with one call per layer; their other rows are dropped."""
        source: list[int] = []
        target: list[int] = []
        for one in kept:
            if (settled := one.settled) < len(one.rows):
                table = self._tables[one.key]
                source += [table.slot(one.start + row) for row in one.rows[settled:]]
                target += table.slots(one.start + settled, one.start + len(one.rows)).tolist()
        here, there = np.array(source, dtype=np.int64), np.array(target, dtype=np.int64)
        for layer in self.layers.values():
            layer.keep(kept, here, there)

    def release(self, key: str, *, keep: bool = True) -> None:
        """Give back all pages of a sequence, if any; ``keep=False`` also drops its own cached prefix."""
        table = self._tables.pop(key, None)
        if table is None:
            return
        for layer in self.layers.values():
            layer.forget(key)
        if not keep:
            self._forget(table)
        for page in reversed(table.pages):  # the deepest first, as the index requires
            self._disown(page)

    def forget_prefixes(self) -> None:
        """Drop all cached prefixes; running sequences keep their pages but share no more."""
        for node in list(self._index.root.children.values()):
            self._free.update(self._index.forget(node))
        for table in self._tables.values():
            table.node = None

    def check(self) -> None:
        """Check that every page is owned as often as it is counted, cached or free.

        Raises:
            AssertionError: naming the pages.
        """
        owned = Counter(page for table in self._tables.values() for page in table.pages)
        kept = [page for page in range(self._total) if page in self._index and not self._owners[page]]
        everything = Counter([*owned, *self._free, *kept])
        twice = {page for page, count in everything.items() if count > 1}
        twice |= {page for page, count in owned.items() if count > self._owners[page]}
        twice |= {page for page, count in owned.items() if count > 1} - self._shared_pages()
        lost = {page for page, count in enumerate(self._owners) if page not in everything or owned[page] < count}
        if twice or lost:
            raise AssertionError(f"pages owned twice: {sorted(twice)}; pages lost: {sorted(lost)}")
        self._index.check(list(owned))
        for key, table in self._tables.items():
            if table.node is not None and self._index.path(table.node) != table.pages[: table.shared]:
                raise AssertionError(f"the shared pages of {key} are not those of its text")

    def _shared_pages(self) -> set[int]:
        """Pages that no owner writes."""
        written = {page for table in self._tables.values() for page in table.pages[table.shared :]}
        return {page for table in self._tables.values() for page in table.pages[: table.shared]} - written

    def _begin(self, key: str) -> PageTable:
        root = self._index.root if self.shares else None
        table = self._tables[key] = PageTable(self.page_size, root, self.salts.get(key))
        return table

    def _own(self, page: int) -> None:
        self._owners[page] += 1
        self._index.own(page)

    def _disown(self, page: int) -> None:
        self._owners[page] -= 1
        if self._owners[page]:
            return
        if page in self._index:
            self._index.disown(page)
        else:
            self._free.add(page)

    def _evict(self, count: int) -> None:
        self._free.update(self._index.evict() for _ in range(count))

    def _forget(self, table: PageTable) -> None:
        """Remove the pages that only this sequence owns from the index, with everything below them."""
        node, last = table.node, None
        while node is not None and node.page is not None and self._owners[node.page] == 1:
            node, last = node.parent, node
        if last is not None:
            self._free.update(self._index.forget(last))

    def _start(self, count: int) -> int:
        """First page for a run of ``count`` pages: in the middle of the longest free run, so its neighbours can grow.

        owner A ▏· · · · · · · free · · · · · · · ▏ owner B
                └─ A grows here ─┘ new run ─ grows ┘
        """
        if len(self._free) <= count:
            return min(self._free)  # all are taken
        first = length = run = 0
        for page in range(self._total + 1):
            if page in self._free:
                run += 1
                continue
            if run > length:
                first, length = page - run, run
            run = 0
        room = max(0, length - count) // 2 if first else 0  # nobody grows into a run at the start of the cache
        return first + room


class KVPool:
    """The caches of all models of an engine, target first, with ``rows`` rounded up to whole pages.

    ``prefix_cache`` says whether sequences share pages; None shares only where that changes no bit.
    """

    cache_type: type[PagedCache] = PagedCache

    def __init__(self, rows: int, page_size: int, prefix_cache: bool | None = False) -> None:
        self.page_size = page_size
        self._pages = max(1, -(-rows // page_size))
        self._prefix_cache = prefix_cache
        self._caches: dict[str, PagedCache] = {}
        self._salts: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """Rows of each model's cache."""
        return self._pages * self.page_size

    def cache(self, model: str, *, row_invariant: bool = False) -> PagedCache:
        """Get the cache of one model, created at the first call.

        ``row_invariant`` as in :class:`outrider.models.base.TargetModel`.
        """
        if model not in self._caches:
            shares = row_invariant if self._prefix_cache is None else self._prefix_cache
            self._caches[model] = self.cache_type(self._pages, self.page_size, shares=shares, salts=self._salts)
        return self._caches[model]

    def forget_prefixes(self) -> None:
        """Drop the cached prefixes of all models."""
        for cache in self._caches.values():
            cache.forget_prefixes()

    def check(self) -> None:
        """Check every cache."""
        for cache in self._caches.values():
            cache.check()
