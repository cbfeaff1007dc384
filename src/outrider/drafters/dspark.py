"""DSpark: predicts a block in one pass, corrects each token by the previous one, and stops where it is unsure.

Source: DeepSeek-AI and Peking University 2026 (arXiv 2607.05147).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._block_drafter import BlockDrafter, block_drafter
from outrider.drafters._trained import ChainOptions
from outrider.drafters.base import Workbench, register
from outrider.options import option


@register
@dataclass(frozen=True)
class DSpark(ChainOptions):
    """Options of a DSpark head."""

    method: ClassVar[str] = "dspark"
    kind: ClassVar[str] = "dspark"

    row_cost: float = option(
        0.06,
        "Cost of one more row relative to a one-row pass. A block ends where another row does not pay; 0 always drafts "
        "whole blocks.",
        low=0,
        high=10,
        flag="speculative-row-cost",
    )

    def build(self, workbench: Workbench) -> BlockDrafter:
        return block_drafter(workbench, self, self.row_cost)
