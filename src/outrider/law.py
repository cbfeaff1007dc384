"""Laws: probability distributions over the vocabulary, made by samplers and used by acceptance rules.

An unreadable row (its logits are not numbers, a processor refuses its history, no token is left) has a law, too: all
its mass is on one more outcome, :data:`ERROR`, which no drafter proposes.  It is stored as all zeros, so rules need no
second vocabulary: a ratio p/q is then 0, and the residual of such a law is that law.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Law: TypeAlias = npt.NDArray[np.float64]
"""float64 [vocabulary] on the CPU, non-negative, adding up to 1, or all 0 for an unreadable row.

An array and not a tensor, because rules read single numbers, for which a tensor takes fifteen times as long.
"""
Laws: TypeAlias = npt.NDArray[np.float64]
"""[rows, vocabulary], one law per row."""
ERROR: Final = -1
"""The outcome of an unreadable row; never a token id."""


def unreadable(vocabulary: int) -> Law:
    """The law of an unreadable row."""
    return np.zeros(vocabulary)


def is_unreadable(law: Law) -> bool:
    """Whether all of a law's mass is on :data:`ERROR`."""
    return not law.any()


def best(law: Law) -> int:
    """The most probable outcome, of equals the lowest id; :data:`ERROR` for an unreadable row."""
    return ERROR if is_unreadable(law) else int(law.argmax())
