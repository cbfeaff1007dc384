"""Blockwise parallel decoding: a chain that one feed-forward layer guesses at once.

Source: Stern, Shazeer, Uszkoreit 2018 (arXiv 1811.03115).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._growth import StaticTree
from outrider.drafters._parallel_drafter import ParallelDrafter
from outrider.drafters._trained import the_head
from outrider.drafters.base import Needs, Workbench, check_options, option, register
from outrider.errors import ConfigError
from outrider.heads.parallel_runner import ParallelRunner


@register
@dataclass(frozen=True)
class Blockwise:
    """Options of blockwise decoding."""

    method: ClassVar[str] = "blockwise"
    automatic_rank: ClassVar[int] = 7
    needs: ClassVar[Needs] = Needs()

    head: str = option("", "Folder of the trained head.", flag="speculative-draft-model-path")
    num_draft_tokens: int = option(
        4,
        "Most drafted tokens per round; a head guesses no more than it was trained for.",
        low=0,
        high=64,
        flag="speculative-num-draft-tokens",
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @property
    def most_nodes(self) -> int:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        return 1 + self.num_draft_tokens

    def build(self, bench: Workbench) -> ParallelDrafter:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        if not self.head:
            raise ConfigError("blockwise needs a trained head; name its folder with --speculative-draft-model-path")
        head = bench.head(self.head).build()
        head.share(bench.target)
        chain = StaticTree(tuple((0,) * depth for depth in range(1, self.most_nodes)))
        return ParallelDrafter(ParallelRunner(head, bench.target), chain, most_nodes=self.most_nodes, branching=False)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Blockwise | None:
        """See :class:`outrider.drafters.base.DrafterConfig`."""
        head = the_head(draft_models, "blockwise")
        return None if head is None else cls(head=head)
