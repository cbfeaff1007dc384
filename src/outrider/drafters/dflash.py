"""DFlash: a block of tokens in one pass, each drawn for itself.

Source: Chen, Liang, Liu 2026 (arXiv 2602.06036).
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
class DFlash:
    """Options of a DFlash head."""

    method: ClassVar[str] = "dflash"
    automatic_rank: ClassVar[int] = 6

    head: str = option("", "Folder of the trained head.", flag="speculative-draft-model-path")
    num_draft_tokens: int = option(
        7,
        "Most drafted tokens per round; a block has no more.",
        low=0,
        high=64,
        flag="speculative-num-draft-tokens",
    )
    row_cost: ClassVar[float] = 0.0

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
    def automatic(cls, draft_models: Sequence[str]) -> DFlash | None:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        head = the_head(draft_models, "dspark")
        return None if head is None else cls(head=head)
