"""Paged keys and values: who owns which page, and what a round keeps.

One cache per model, one page table per (request, model).  Rows of a sequence, left to right:

    0 ─── shared pages ───┬───── committed rows ───── computed ── rows of this pass ── end of the last page
    │ full, never written │  read by every row, written once  │ forced rows, then tree nodes, provisional until commit

A commit moves the accepted nodes' rows together behind ``computed``; nothing else is ever copied, and rejected rows
are simply overwritten (:mod:`outrider.kv.state`).  A page that has filled with committed rows is shared: other
sequences whose text begins alike own it too, and when nobody does it stays, least recently used first to go, until its
room is needed.
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
    """All pages of one model.

    Args:
        pages: how many pages there are.
        page_size: rows per page.
        shares: whether a sequence may take over pages that another one has computed.
        salts: read at a sequence's begin, see :attr:`salts`.
    """

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
        """What sets sequences apart that must not share pages with all others of their text, by sequence: pages pass
        between equal salts alone.  One dict for all caches of a pool, so that no drafter can forget it."""
        self.layers: dict[int, LayerState] = {}
        """State of each layer that has had a pass, by the number its model gives it."""

    @property
    def slots(self) -> int:
        """Rows the whole cache can hold."""
        return self._total * self.page_size

    @property
    def free_rows(self) -> int:
        """Rows on pages nobody owns, those kept for their text included."""
        return self._spare * self.page_size

    @property
    def _spare(self) -> int:
        return len(self._free) + self._index.unowned

    @property
    def _in_pages(self) -> bool:
        return all(layer.in_pages for layer in self.layers.values())

    def layer(self, number: int, make: Callable[[], _State]) -> _State:
        """The state of one layer.

        Args:
            number: by which its model knows it.
            make: makes it, empty, when it is first asked for.
        """
        state = self.layers.get(number)
        if state is None:
            state = self.layers[number] = make()
        return cast(_State, state)

    def holds(self, key: str) -> bool:
        """Whether a sequence owns pages."""
        return key in self._tables

    def table(self, key: str) -> PageTable:
        """The page table of a sequence that was extended before."""
        return self._tables[key]

    def shortage(self, key: str, rows: int) -> int:
        """Pages that are missing to let a sequence hold this many rows; 0 when it can."""
        owned = self.owned_rows(key)
        if rows <= owned:
            return 0
        return max(0, -((owned - rows) // self.page_size) - self._spare)

    def owned_rows(self, key: str) -> int:
        """Rows that the pages of a sequence hold."""
        table = self._tables.get(key)
        return table.rows if table else 0

    def most_rows(self, key: str) -> int:
        """Rows that a sequence could hold if it took every free page."""
        return self.owned_rows(key) + self._spare * self.page_size

    def extend(self, key: str, rows: int) -> bool:
        """Make room for a sequence's rows 0 … rows − 1, at the cost of pages kept for their text where need be.

        Returns:
            False, with nothing changed, when there are not enough free pages.
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
            # The next page in memory keeps a sequence contiguous, and a contiguous sequence is read in place.
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
        """Rows that :meth:`reuse` would take over for a sequence of this salt."""
        return len(self._index.match(tokens, most, salt)) * self.page_size

    def reuse(self, key: str, tokens: Sequence[int], most: int) -> int:
        """Begin a sequence with the pages that others shared and that hold its first rows.

        Args:
            key: a sequence without pages.
            tokens: its token ids.
            most: rows that may be taken over; whole pages of them are.

        Returns:
            How many rows were: they are right, and must not be written.
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
        """Let others reuse a sequence's pages that are full; costs nothing while no page has filled.

        Args:
            key: the sequence.
            tokens: its token ids.
            rows: how many of its rows, from the first, are committed.
        """
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

    def commit(self, key: str, start: int, kept: Sequence[int]) -> None:
        """Keep some of one sequence's rows and forget the rest; see :class:`outrider.kv.state.Kept`."""
        self.keep([Kept(key, start, kept)])

    def keep(self, kept: Sequence[Kept]) -> None:
        """Commit the rows of several sequences at once: each layer is asked once, whatever their number.

        Args:
            kept: rows of the last pass to keep, by sequence; the other rows of these sequences are forgotten.
        """
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
        """Give back every page of a sequence; unknown keys are ignored.

        Args:
            key: the sequence.
            keep: leave its shared pages to others; False forgets those that are nobody else's.
        """
        table = self._tables.pop(key, None)
        if table is None:
            return
        for layer in self.layers.values():
            layer.forget(key)
        if not keep:
            self._forget(table)
        for page in reversed(table.pages):  # the deepest first, as the index asks
            self._disown(page)

    def forget_prefixes(self) -> None:
        """Forget what is kept for its text; sequences keep their pages, and what they have computed is not reused."""
        for node in list(self._index.root.children.values()):
            self._free.update(self._index.forget(node))
        for table in self._tables.values():
            table.node = None

    def check(self) -> None:
        """Assert that every page is owned as often as it is counted, kept for its text or free.

        Raises:
            AssertionError: naming the page.
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
        """Pages that none of their owners writes."""
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
        """Take the pages that only this sequence owns out of the index, with all that hangs below them."""
        node, last = table.node, None
        while node is not None and node.page is not None and self._owners[node.page] == 1:
            node, last = node.parent, node
        if last is not None:
            self._free.update(self._index.forget(last))

    def _start(self, count: int) -> int:
        """First page for a run of ``count``: in the longest free run, leaving its neighbours room to grow.

        owner A ▏· · · · · · · free · · · · · · · ▏ owner B
                └─ A grows here ─┘ new run ─ grows ┘
        """
        if len(self._free) <= count:
            return min(self._free)  # all of them are taken, so there is nothing to choose
        first = length = run = 0
        for page in range(self._total + 1):
            if page in self._free:
                run += 1
                continue
            if run > length:
                first, length = page - run, run
            run = 0
        room = max(0, length - count) // 2 if first else 0  # nobody grows into a run that begins the cache
        return first + room


class KVPool:
    """The caches of every model that serves a request, target first.

    Args:
        rows: rows each model's cache can hold, rounded up to whole pages.
        page_size: rows per page.
        prefix_cache: whether sequences take over each other's pages; None lets them where that changes no bit.
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
        """The cache of one model, made on first use; every model's holds equally many rows.

        Args:
            model: its name in the pool.
            row_invariant: whether computing a row again gives the same bits, whatever else is in the pass.
        """
        if model not in self._caches:
            shares = row_invariant if self._prefix_cache is None else self._prefix_cache
            self._caches[model] = self.cache_type(self._pages, self.page_size, shares=shares, salts=self._salts)
        return self._caches[model]

    def forget_prefixes(self) -> None:
        """Forget what every model's cache keeps for its text."""
        for cache in self._caches.values():
            cache.forget_prefixes()

    def check(self) -> None:
        """Assert the integrity of every cache."""
        for cache in self._caches.values():
            cache.check()
