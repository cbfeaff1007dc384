"""EAGLE-1: a trained block continues the target's last hidden rows, as a chain or a tree of fixed shape.

Source: Li, Wei, Zhang, Zhang 2024 (arXiv 2401.15077).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from outrider.drafters._feature_drafter import FeatureDrafter, feature_drafter
from outrider.drafters._growth import StaticTree
from outrider.drafters._trained import TreeOptions
from outrider.drafters.base import Workbench, register, width_option

_CHANCES: Final = (0.6, 0.15, 0.08, 0.05, 0.03, 0.02)
"""How often the proposal of each rank is right; only the resulting order of nodes matters."""


@register
@dataclass(frozen=True)
class Eagle(TreeOptions):
    """Options of an EAGLE-1 head."""

    method: ClassVar[str] = "eagle"
    kind: ClassVar[str] = "eagle"
    automatic_rank: ClassVar[int] = 6

    topk: int = width_option(1, "Maximum branches per node", tree="a tree of fixed shape", high=len(_CHANCES))

    @property
    def shape(self) -> StaticTree:
        """Shape of the tree."""
        return StaticTree.likeliest([_CHANCES[: self.topk]] * self.num_steps, self.most_nodes - 1)

    def build(self, workbench: Workbench) -> FeatureDrafter:
        return feature_drafter(workbench, self, self.shape)
