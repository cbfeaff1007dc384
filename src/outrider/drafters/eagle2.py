"""EAGLE-2: the weights of EAGLE-1 with a tree that grows where the head is sure of itself.

Source: Li, Wei, Zhang, Zhang 2024 (arXiv 2406.16858).  Under the coupled rule with noise, the proposals that are ranked
are those of the perturbed scores.
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
class Eagle2:
    """Options of an EAGLE-1 head with a dynamic tree."""

    method: ClassVar[str] = "eagle2"
    automatic_rank: ClassVar[int] = 7

    head: str = option("", "Folder of the trained head.", flag="speculative-draft-model-path")
    num_steps: int = option(5, "Drafting depth: head steps per round.", low=0, high=64, flag="speculative-num-steps")
    topk: int = option(
        4, "Nodes expanded per level, and branches of each.", low=1, high=64, flag="speculative-eagle-topk"
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
    def automatic(cls, draft_models: Sequence[str]) -> Eagle2 | None:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        head = the_head(draft_models, "eagle")
        return None if head is None else cls(head=head)
