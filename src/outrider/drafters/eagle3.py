"""EAGLE-3: a head reads three of the target's layers and drafts from a reduced vocabulary, as a chain or a tree.

Source: Li, Wei, Zhang, Zhang 2025 (arXiv 2503.01840).  Its tree grows as EAGLE-2's does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._feature_drafter import FeatureDrafter, feature_drafter
from outrider.drafters._growth import DynamicTree
from outrider.drafters._trained import TreeOptions
from outrider.drafters.base import Workbench, register


@register
@dataclass(frozen=True)
class Eagle3(TreeOptions):
    """Options of an EAGLE-3 head."""

    method: ClassVar[str] = "eagle3"
    kind: ClassVar[str] = "eagle3"

    def build(self, workbench: Workbench) -> FeatureDrafter:
        return feature_drafter(workbench, self, DynamicTree(self.topk))
