"""EAGLE-2: EAGLE-1's weights with a dynamic tree, which grows where the head is confident.

Source: Li, Wei, Zhang, Zhang 2024 (arXiv 2406.16858).  Under the coupled rule with noise, the proposals that are ranked
are those of the perturbed scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._feature_drafter import FeatureDrafter, feature_drafter
from outrider.drafters._growth import DynamicTree
from outrider.drafters._trained import TreeOptions
from outrider.drafters.base import Workbench, register
from outrider.options import Role, option


@register
@dataclass(frozen=True)
class Eagle2(TreeOptions):
    """Options of an EAGLE-1 head with a dynamic tree."""

    method: ClassVar[str] = "eagle2"
    kind: ClassVar[str] = "eagle"

    num_steps: int = option(
        5, "Draft depth: head steps per round. Raise it if acceptance is high.", low=0, high=64, role=Role.DEPTH
    )
    topk: int = option(
        4, "Nodes to expand per level, and branches per node; 1 drafts a chain.", low=1, high=64, role=Role.WIDTH
    )

    def build(self, workbench: Workbench) -> FeatureDrafter:
        return feature_drafter(workbench, self, DynamicTree(self.topk))
