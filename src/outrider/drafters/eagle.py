"""EAGLE-1: a block that continues the target's last hidden rows, as a chain or a tree of fixed shape.

Source: Li, Wei, Zhang, Zhang 2024 (arXiv 2401.15077).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from outrider.drafters._feature_drafter import FeatureDrafter, feature_drafter
from outrider.drafters._growth import StaticTree
from outrider.drafters._trained import the_head
from outrider.drafters.base import Needs, Workbench, check_options, option, register

_CHANCES: Final = (0.6, 0.15, 0.08, 0.05, 0.03, 0.02)
"""How often a proposal of each rank is right; of the shape that follows only the order of nodes matters."""


@register
@dataclass(frozen=True)
class Eagle:
    """Options of an EAGLE-1 head."""

    method: ClassVar[str] = "eagle"
    automatic_rank: ClassVar[int] = 6

    head: str = option("", "Folder of the trained head.", flag="speculative-draft-model-path")
    num_steps: int = option(4, "Drafting depth: head steps per round.", low=0, high=64, flag="speculative-num-steps")
    topk: int = option(
        1,
        "Most branches of a node; 1 drafts a chain, more a tree of fixed shape.",
        low=1,
        high=len(_CHANCES),
        flag="speculative-eagle-topk",
    )
    num_draft_tokens: int = option(
        0,
        "Most drafted tokens per round; 0 is one per step in a chain, 25 in a tree.",
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
        return 1 + (self.num_draft_tokens or (self.num_steps if self.topk == 1 else 25))

    @property
    def shape(self) -> StaticTree:
        """The tree's."""
        return StaticTree.likeliest([_CHANCES[: self.topk]] * self.num_steps, self.most_nodes - 1)

    def build(self, bench: Workbench) -> FeatureDrafter:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return feature_drafter(bench, self, self.shape)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Eagle | None:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        head = the_head(draft_models, "eagle")
        return None if head is None else cls(head=head)
