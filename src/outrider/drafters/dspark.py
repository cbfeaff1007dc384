"""DSpark: a block in one pass, each token corrected by the one before it, its length by how sure the head is.

Source: DeepSeek-AI and Peking University 2026 (arXiv 2607.05147).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._block_drafter import BlockDrafter, block_drafter
from outrider.drafters._trained import the_head
from outrider.drafters.base import Needs, Workbench, check_options, option, register


@register
@dataclass(frozen=True)
class DSpark:
    """Options of a DSpark head."""

    method: ClassVar[str] = "dspark"
    automatic_rank: ClassVar[int] = 7

    head: str = option("", "Folder of the trained head.", flag="speculative-draft-model-path")
    num_draft_tokens: int = option(
        7,
        "Most drafted tokens per round; a block has no more.",
        low=0,
        high=64,
        flag="speculative-num-draft-tokens",
    )
    row_cost: float = option(
        0.06,
        "Cost of one more verified row over a one-row pass: drafting stops where another row is not worth it; 0 drafts "
        "whole blocks.",
        low=0,
        high=10,
        flag="speculative-row-cost",
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @property
    def needs(self) -> Needs:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return Needs()

    @property
    def most_nodes(self) -> int:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return 1 + self.num_draft_tokens

    def build(self, bench: Workbench) -> BlockDrafter:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return block_drafter(bench, self)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> DSpark | None:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        head = the_head(draft_models, "dspark")
        return None if head is None else cls(head=head)
