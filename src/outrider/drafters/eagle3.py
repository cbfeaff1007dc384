"""EAGLE-3: a head that reads three of the target's layers and drafts from a vocabulary of its own, as chain or tree.

Source: Li, Wei, Zhang, Zhang 2025 (arXiv 2503.01840).  Its tree grows as EAGLE-2's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._feature_drafter import FeatureDrafter, feature_drafter
from outrider.drafters._growth import DynamicTree
from outrider.drafters._trained import the_head
from outrider.drafters.base import Needs, Workbench, check_options, option, register


@register
@dataclass(frozen=True)
class Eagle3:
    """Options of an EAGLE-3 head."""

    method: ClassVar[str] = "eagle3"
    automatic_rank: ClassVar[int] = 7

    head: str = option("", "Folder of the trained head.", flag="speculative-draft-model-path")
    num_steps: int = option(4, "Drafting depth: head steps per round.", low=0, high=64, flag="speculative-num-steps")
    topk: int = option(
        1,
        "Nodes expanded per level, and branches of each; 1 drafts a chain.",
        low=1,
        high=64,
        flag="speculative-eagle-topk",
    )
    num_draft_tokens: int = option(
        0,
        "Most drafted tokens per round; 0 is one per step in a chain, three per step in a tree.",
        low=0,
        high=1024,
        flag="speculative-num-draft-tokens",
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @property
    def needs(self) -> Needs:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return Needs(branching=self.topk > 1)

    @property
    def most_nodes(self) -> int:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return 1 + (self.num_draft_tokens or (1 if self.topk == 1 else 3) * self.num_steps)

    def build(self, bench: Workbench) -> FeatureDrafter:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return feature_drafter(bench, self, DynamicTree(self.topk))

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Eagle3 | None:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        head = the_head(draft_models, "eagle3")
        return None if head is None else cls(head=head)
