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
from outrider.drafters.base import Workbench, depth_option, register, width_option


@register
@dataclass(frozen=True)
class Eagle2(TreeOptions):
    """Options of an EAGLE-1 head with a dynamic tree."""

    method: ClassVar[str] = "eagle2"
    kind: ClassVar[str] = "eagle"

    num_steps: int = depth_option(5, "head steps")
    topk: int = width_option(4, "Nodes to expand per level, and branches per node")

    def build(self, workbench: Workbench) -> FeatureDrafter:
        return feature_drafter(workbench, self, DynamicTree(self.topk))
