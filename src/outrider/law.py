"""Laws: probability distributions over the vocabulary, which samplers make and acceptance rules use.

A row that cannot be read (its logits are not numbers, a processor refuses its history, no token is left) has a law too:
all mass lies on one more outcome, :data:`ERROR`, which no drafter proposes.  It is written as all zeros, so that rules
need no second vocabulary: a ratio p/q is 0 there, and what is left of such a law is that law.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Law: TypeAlias = npt.NDArray[np.float64]
"""float64 [vocabulary], non-negative, adding up to 1, or all 0 for an unreadable row; on the CPU whatever
computed it.

An array and not a tensor: rules ask for single numbers of it, which cost a tensor fifteen times as much.
"""
Laws: TypeAlias = npt.NDArray[np.float64]
"""[rows, vocabulary], a law per row."""
ERROR: Final = -1
"""The outcome of an unreadable row; never a token id."""


def unreadable(vocabulary: int) -> Law:
    """The law of an unreadable row."""
    return np.zeros(vocabulary)


def is_unreadable(law: Law) -> bool:
    """Whether all of a law's mass lies on :data:`ERROR`."""
    return not law.any()


def best(law: Law) -> int:
    """The most probable outcome, the lowest id among equals; :data:`ERROR` for an unreadable row."""
    return ERROR if is_unreadable(law) else int(law.argmax())
