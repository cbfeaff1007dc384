"""Medusa: heads on the target's last hidden row predict later tokens, as a chain or a sparse tree.

Source: Cai et al. 2024 (arXiv 2401.10774).  The tree has a fixed shape, grown by how often guesses are right (§2.3);
the engine's acceptance rule verifies it, so the text stays the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from outrider.drafters._growth import StaticTree
from outrider.drafters._parallel_drafter import ParallelDrafter
from outrider.drafters._trained import TreeOptions, built_head
from outrider.drafters.base import Workbench, depth_option, register, width_option
from outrider.heads.runner import ParallelRunner

CHANCES: Final = (
    (0.55, 0.13, 0.07, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01),
    (0.35, 0.12, 0.07, 0.05, 0.03, 0.03, 0.02, 0.02, 0.01, 0.01),
    (0.25, 0.10, 0.06, 0.04, 0.03, 0.03, 0.02, 0.02, 0.02, 0.01),
    (0.20, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02, 0.02, 0.02, 0.01),
)
"""How often the guess of each rank is right, by head, for heads without figures of their own; deeper heads use the
last row."""


@register
@dataclass(frozen=True)
class Medusa(TreeOptions):
    """Options of Medusa heads."""

    method: ClassVar[str] = "medusa"
    kind: ClassVar[str] = "medusa"

    num_steps: int = depth_option(4, "heads to use")
    topk: int = width_option(1, "Maximum guesses per head and node", tree="a tree of fixed shape", high=len(CHANCES[0]))

    def shape(self, chances: Sequence[Sequence[float]]) -> StaticTree:
        """Make the tree with the likeliest nodes, given the chances of each head and rank."""
        levels = [chances[min(depth, len(chances) - 1)][: self.topk] for depth in range(self.num_steps)]
        possible = [[max(chance, 1e-6) for chance in level] for level in levels]
        return StaticTree.likeliest(possible, self.most_nodes - 1) if possible else StaticTree(())

    def build(self, workbench: Workbench) -> ParallelDrafter:
        head = built_head(workbench, self)
        shape = self.shape(head.config.chances or CHANCES)
        runner = ParallelRunner(head, workbench.target)
        return ParallelDrafter(runner, shape, most_nodes=self.most_nodes, needs=self.needs)
