"""What the layers of a model keep of every sequence from one pass to the next, one class for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

Slots = npt.NDArray[np.int64]
"""Places of rows in a cache, int64 [rows], on the CPU."""


class Kept(NamedTuple):
    """The rows of the last passes that one sequence keeps; all others of them are forgotten."""

    key: str
    """The sequence."""
    start: int
    """Its first row that was not committed."""
    rows: Sequence[int]
    """Accepted rows counted from ``start``, rising; row ``rows[i]`` becomes row ``start + i``."""

    @property
    def settled(self) -> int:
        """How many of the rows, from the first, lie where they belong already."""
        if not self.rows or self.rows[-1] == len(self.rows) - 1:  # they rise
            return len(self.rows)
        return next(place for place, row in enumerate(self.rows) if place != row)


class LayerState(Protocol):
    """The state of one layer, of all sequences; the model's pass writes it, the cache says what becomes of it.

    A pass computes rows that may be rejected.  After it :meth:`keep` names those that stay, unless all do and the next
    pass goes on behind them.
    """

    in_pages: ClassVar[bool]
    """Whether all of it lies in the sequence's pages, so that whoever takes a page over has it."""

    def keep(self, kept: Sequence[Kept], source: Slots, target: Slots) -> None:
        """Keep some rows of some sequences and forget their other provisional ones.

        Args:
            kept: the rows of every sequence that took part.
            source: slots of the rows that have to move, of all sequences; none lies in ``target`` of another.
            target: where they move.
        """
        ...

    def forget(self, key: str) -> None:
        """A sequence gives its pages back; unknown keys are ignored."""
        ...


class LayerStore:
    """Keys and values of one layer, ``[heads, slots, width]``; made at the first write, when the shapes are known.

    Heads come first because attention reads one head's rows at a time: side by side they are read in one stream.

    Args:
        slots: rows to hold.
        key: [heads, any, width], of which shape, precision and device are taken.
        value: [heads, any, value width], likewise.
    """

    in_pages: ClassVar[bool] = True

    def __init__(self, slots: int, key: torch.Tensor, value: torch.Tensor) -> None:
        with torch.inference_mode(False):  # an inference tensor could not be written between passes
            self.keys, self.values = (
                torch.empty(rows.shape[0], slots, rows.shape[2], dtype=rows.dtype, device=rows.device)
                for rows in (key, value)
            )

    def keep(self, kept: Sequence[Kept], source: Slots, target: Slots) -> None:
        """Rows move, and what was rejected is overwritten by the next pass."""
        if len(source):
            device = self.keys.device
            here, there = (torch.from_numpy(slots).to(device) for slots in (source, target))
            for store in (self.keys, self.values):
                store.index_copy_(1, there, store.index_select(1, here))

    def forget(self, key: str) -> None:
        """Whoever owns the pages next writes every row before reading it."""
