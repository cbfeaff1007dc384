"""Pages of one sequence, and the slots of its rows in them."""

from __future__ import annotations

import numpy as np

from outrider.kv.prefix import PrefixNode
from outrider.kv.state import Slots


class PageTable:
    """Pages of one sequence in one model's cache.

    ``node`` is the root of the prefix index, None shares nothing; ``salt`` as in
    :attr:`outrider.kv.pool.PagedCache.salts`.
    """

    def __init__(self, page_size: int, node: PrefixNode | None = None, salt: str | None = None) -> None:
        self._page_size, self.salt = page_size, salt
        self.pages: list[int] = []
        self.shared = 0
        """Number of shared pages, from the first; they are never written again."""
        self.node = node
        """Node of the last shared page in the prefix index; None if sharing has stopped."""
        self.rows = 0
        """Rows that fit in the pages."""
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._gaps = 0

    @property
    def contiguous(self) -> bool:
        """Whether the pages are adjacent and in order."""
        return self._gaps == 0

    def add(self, page: int) -> None:
        """Append a page."""
        first = self.rows
        self.pages.append(page)
        self._gaps += self._gap(len(self.pages) - 1)
        self.rows = first + self._page_size
        if len(self._slots) < self.rows:
            grown = np.empty(max(2 * len(self._slots), self.rows), dtype=np.int64)
            grown[:first] = self._slots[:first]
            self._slots = grown
        self._write(first, page)

    def drop_last(self) -> int:
        """Take the last page away."""
        self._gaps -= self._gap(len(self.pages) - 1)
        self.rows -= self._page_size
        return self.pages.pop()

    def replace(self, place: int, page: int) -> None:
        """Replace a page by another one with the same rows."""
        self._gaps -= self._gap(place) + self._gap(place + 1)
        self.pages[place] = page
        self._gaps += self._gap(place) + self._gap(place + 1)
        self._write(place * self._page_size, page)

    def _write(self, first: int, page: int) -> None:
        slot = page * self._page_size
        self._slots[first : first + self._page_size] = np.arange(slot, slot + self._page_size)

    def _gap(self, place: int) -> bool:
        """Whether a page is not next to the page before it."""
        return 0 < place < len(self.pages) and self.pages[place] != self.pages[place - 1] + 1

    def slots(self, start: int, stop: int) -> Slots:
        """Cache slots of rows start … stop − 1, as a view.

        Raises:
            IndexError: the sequence has no page for some of them.
        """
        if stop > self.rows:
            raise IndexError(f"rows {start} to {stop - 1} were asked for, but the pages hold {self.rows}")
        return self._slots[start:stop]

    def slot(self, row: int) -> int:
        """Cache slot of one row."""
        return self.pages[row // self._page_size] * self._page_size + row % self._page_size
