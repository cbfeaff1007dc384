"""Decides whether a draft is worth a row of the pass.

Drafters estimate how likely a draft is accepted; the price says what that estimate has to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RowPrice:
    """What a draft must promise to be verified and extended; the default demands nothing.

    Under a ratio rule a drafter passes only estimates that were made before the token was drawn.
    """

    least_survival: float = 0.0
    """Minimum estimated probability that the draft and all before it are accepted."""
    row_cost: float = 0.0
    """Cost of one more row, in passes over one row; 0 means free."""
    round_cost: float = 1.0
    """Cost of a round without drafts, in passes over one row."""

    def worth(self, survival: Sequence[float], another: float) -> bool:
        """Whether a tree should get another node.

        Args:
            survival: of the tree's nodes, the anchor's 1 included.
            another: estimated chance that the new node and all above it are accepted.

        Returns:
            True where it reaches ``least_survival`` and, if rows cost something, raises the tokens expected per cost
            (DSpark, arXiv 2607.05147, §3.3).
        """
        if another < self.least_survival:
            return False
        if not self.row_cost:
            return True
        cost, expected = self.round_cost + self.row_cost * (len(survival) - 1), sum(survival)
        return (expected + another) / (cost + self.row_cost) > expected / cost


FREE: Final = RowPrice()
"""Every draft is worth its row."""
