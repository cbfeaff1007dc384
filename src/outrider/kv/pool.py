"""Paged keys and values: who owns which page, and what a round keeps.

One cache per model, one page table per (request, model).  Rows of a sequence, left to right:

    0 ───────────── committed rows ───────────── computed ── rows of this pass ── end of the last page
    │  read by every row, written once            │ forced rows, then tree nodes, provisional until commit

A commit moves the accepted nodes' rows together behind ``computed``; nothing else is ever copied, and rejected rows
are simply overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

_UNSET: Final = -1


class PageTable:
    """The pages of one sequence in one model's cache."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.pages: list[int] = []
        self._slots = torch.empty(0, dtype=torch.int64)
        self._offsets = torch.arange(page_size, dtype=torch.int64)
        self.contiguous = True

    @property
    def rows(self) -> int:
        """Rows the pages can hold."""
        return len(self.pages) * self._page_size

    def add(self, page: int) -> None:
        """Append a page."""
        self.contiguous = self.contiguous and (not self.pages or page == self.pages[-1] + 1)
        first = self.rows
        self.pages.append(page)
        if len(self._slots) < self.rows:
            grown = torch.empty(max(2 * len(self._slots), self.rows), dtype=torch.int64)
            grown[:first] = self._slots[:first]
            self._slots = grown
        self._slots[first : self.rows] = self._offsets + page * self._page_size

    def slots(self, start: int, stop: int) -> torch.Tensor:
        """Cache slots of rows start … stop − 1, int64 on the CPU; a view.

        Raises:
            IndexError: the sequence has no page for some of them.
        """
        if stop > self.rows:
            raise IndexError(f"rows {start} to {stop - 1} were asked for, but the pages hold {self.rows}")
        return self._slots[start:stop]

    def slot(self, row: int) -> int:
        """Cache slot of one row."""
        return self.pages[row // self._page_size] * self._page_size + row % self._page_size


class LayerStore:
    """Keys and values of one layer, ``[heads, slots, width]``; made at the first write, when the shapes are known.

    Heads come first because attention reads one head's rows at a time: side by side they are read in one stream.

    Args:
        slots: rows to hold.
        key: [heads, any, width], of which shape, precision and device are taken.
        value: [heads, any, value width], likewise.
    """

    def __init__(self, slots: int, key: torch.Tensor, value: torch.Tensor) -> None:
        with torch.inference_mode(False):  # an inference tensor could not be written between passes
            self.keys, self.values = (
                torch.empty(rows.shape[0], slots, rows.shape[2], dtype=rows.dtype, device=rows.device)
                for rows in (key, value)
            )


class PagedCache:
    """All pages of one model.

    Args:
        pages: how many pages there are.
        page_size: rows per page.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size, self._total = page_size, pages
        self._free = set(range(pages))
        self._tables: dict[str, PageTable] = {}
        self.layers: dict[int, LayerStore] = {}

    @property
    def slots(self) -> int:
        """Rows the whole cache can hold."""
        return self._total * self.page_size

    @property
    def free_rows(self) -> int:
        """Rows on pages nobody owns."""
        return len(self._free) * self.page_size

    def holds(self, key: str) -> bool:
        """Whether a sequence owns pages."""
        return key in self._tables

    def table(self, key: str) -> PageTable:
        """The page table of a sequence that was extended before."""
        return self._tables[key]

    def shortage(self, key: str, rows: int) -> int:
        """Pages that are missing to let a sequence hold this many rows; 0 when it can."""
        table = self._tables.get(key)
        owned = len(table.pages) if table else 0
        return max(0, -(-rows // self.page_size) - owned - len(self._free))

    def extend(self, key: str, rows: int) -> bool:
        """Make room for a sequence's rows 0 … rows − 1.

        Returns:
            False, with nothing changed, when there are not enough free pages.
        """
        if self.shortage(key, rows):
            return False
        table = self._tables.setdefault(key, PageTable(self.page_size))
        while table.rows < rows:
            wish = table.pages[-1] + 1 if table.pages else _UNSET
            # The next page in memory keeps a sequence contiguous, and a contiguous sequence is read in place.
            page = wish if wish in self._free else self._start(-(-(rows - table.rows) // self.page_size))
            self._free.remove(page)
            table.add(page)
        return True

    def commit(self, key: str, start: int, kept: Sequence[int]) -> None:
        """Keep some of a pass's rows and forget the rest.

        Args:
            key: the sequence.
            start: its first provisional row.
            kept: accepted rows counted from ``start``, rising; row ``kept[i]`` becomes row ``start + i``.
        """
        settled = 0
        while settled < len(kept) and kept[settled] == settled:
            settled += 1
        if settled == len(kept):
            return
        table = self._tables[key]
        source = torch.tensor([table.slot(start + row) for row in kept[settled:]])
        target = table.slots(start + settled, start + len(kept))
        for layer in self.layers.values():
            for store in (layer.keys, layer.values):
                store[:, target.to(store.device)] = store[:, source.to(store.device)]

    def release(self, key: str) -> None:
        """Give back every page of a sequence; unknown keys are ignored."""
        table = self._tables.pop(key, None)
        if table:
            self._free.update(table.pages)

    def check(self) -> None:
        """Assert that every page is owned exactly once or free.

        Raises:
            AssertionError: naming the page.
        """
        owned = [page for table in self._tables.values() for page in table.pages]
        everything = sorted([*owned, *self._free])
        if everything != list(range(self._total)):
            twice = {page for page in everything if everything.count(page) > 1}
            lost = set(range(self._total)) - set(everything)
            raise AssertionError(f"pages owned twice: {sorted(twice)}; pages lost: {sorted(lost)}")

    def _start(self, count: int) -> int:
        """First page for a run of ``count``: in the longest free run, leaving its neighbours room to grow.

        owner A ▏· · · · · · · free · · · · · · · ▏ owner B
                └─ A grows here ─┘ new run ─ grows ┘
        """
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
    """

    def __init__(self, rows: int, page_size: int) -> None:
        self.page_size = page_size
        self._pages = max(1, -(-rows // page_size))
        self._caches: dict[str, PagedCache] = {}

    @property
    def rows(self) -> int:
        """Rows of each model's cache."""
        return self._pages * self.page_size

    def cache(self, model: str) -> PagedCache:
        """The cache of one model, made on first use; every model's holds equally many rows."""
        if model not in self._caches:
            self._caches[model] = PagedCache(self._pages, self.page_size)
        return self._caches[model]

    def check(self) -> None:
        """Assert the integrity of every cache."""
        for cache in self._caches.values():
            cache.check()
