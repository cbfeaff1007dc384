"""DFlash: predicts a block of tokens in one pass, each independently.

Source: Chen, Liang, Liu 2026 (arXiv 2602.06036).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._block_drafter import BlockDrafter, block_drafter
from outrider.drafters._trained import ChainOptions
from outrider.drafters.base import Workbench, register


@register
@dataclass(frozen=True)
class DFlash(ChainOptions):
    """Options of a DFlash head."""

    method: ClassVar[str] = "dflash"
    kind: ClassVar[str] = "dspark"
    automatic_rank: ClassVar[int] = 6

    def build(self, workbench: Workbench) -> BlockDrafter:
        return block_drafter(workbench, self, row_cost=0.0)
