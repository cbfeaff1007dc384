"""Blockwise parallel decoding: one feed-forward layer predicts several later tokens at once, as a chain.

Source: Stern, Shazeer, Uszkoreit 2018 (arXiv 1811.03115).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._growth import StaticTree
from outrider.drafters._parallel_drafter import ParallelDrafter
from outrider.drafters._trained import ChainOptions, built_head
from outrider.drafters.base import Workbench, register
from outrider.heads.runner import ParallelRunner


@register
@dataclass(frozen=True)
class Blockwise(ChainOptions):
    """Options of blockwise decoding."""

    method: ClassVar[str] = "blockwise"
    kind: ClassVar[str] = "blockwise"

    def build(self, workbench: Workbench) -> ParallelDrafter:
        head = built_head(workbench, self)
        head.share(workbench.target)
        head.give_projection()
        chain = StaticTree(tuple((0,) * depth for depth in range(1, self.most_nodes)))
        return ParallelDrafter(
            ParallelRunner(head, workbench.target), chain, most_nodes=self.most_nodes, needs=self.needs
        )
