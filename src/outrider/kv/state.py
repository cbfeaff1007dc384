"""Layer states: what a model's layers keep of each sequence between passes, one class per kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

Slots = npt.NDArray[np.int64]
"""Places of rows in a cache, int64 [rows], on the CPU."""


class Kept(NamedTuple):
    """The rows of the last passes that one sequence keeps; its other new rows are dropped."""

    key: str
    """The sequence."""
    start: int
    """Its first uncommitted row."""
    rows: Sequence[int]
    """Accepted rows, counted from ``start``, ascending; row ``rows[i]`` becomes row ``start + i``."""

    @property
    def settled(self) -> int:
        """Number of rows, from the first, that are already in place."""
        if not self.rows or self.rows[-1] == len(self.rows) - 1:  # they rise
            return len(self.rows)
        return next(place for place, row in enumerate(self.rows) if place != row)


class LayerState(Protocol):
    """State of one layer, for all sequences: the model's pass writes it, and the cache commits it.

    A pass computes rows that may be rejected.  Afterwards :meth:`keep` names the rows that stay.  It is not called if
    all
    rows stay and the next pass continues after them.
    """

    in_pages: ClassVar[bool]
    """Whether the whole state is in the sequence's pages, so a sequence that adopts a page has it."""

    def keep(self, kept: Sequence[Kept], source: Slots, target: Slots) -> None:
        """Keep some rows of some sequences and drop their other provisional rows.

        Args:
            kept: the rows of every sequence that took part.
            source: slots of the rows that must move, of all sequences; none is in another's ``target``.
            target: the slots to move them to.
        """
        ...

    def forget(self, key: str) -> None:
        """Forget a sequence that gives back its pages; unknown keys are ignored."""
        ...


class LayerStore:
    """Keys and values of one layer, ``[heads, slots, width]``; created at the first write, when shapes are known.

    Heads come first because attention reads one head's rows at a time, in one stream.  Width, precision and device are
    those of ``like_keys`` and ``like_values``, [heads, any, width].
    """

    in_pages: ClassVar[bool] = True

    def __init__(self, slots: int, like_keys: torch.Tensor, like_values: torch.Tensor) -> None:
        with torch.inference_mode(False):  # an inference tensor could not be written between passes
            self.keys, self.values = (
                torch.empty(rows.shape[0], slots, rows.shape[2], dtype=rows.dtype, device=rows.device)
                for rows in (like_keys, like_values)
            )

    def keep(self, kept: Sequence[Kept], source: Slots, target: Slots) -> None:
        if len(source):  # the next pass overwrites rejected rows
            device = self.keys.device
            here, there = (torch.from_numpy(slots).to(device) for slots in (source, target))
            for store in (self.keys, self.values):
                store.index_copy_(1, there, store.index_select(1, here))

    def forget(self, key: str) -> None:
        """Do nothing: the next owner of the pages writes every row before reading it."""
