"""Plain decoding, without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters.base import DraftContext, Drafter, Needs, Workbench, register
from outrider.tree import TokenTree, root_only


@register
@dataclass(frozen=True)
class NoDraft:
    """Plain decoding; it has no options."""

    method: ClassVar[str] = "none"
    automatic_rank: ClassVar[int] = 0
    needs: ClassVar[Needs] = Needs()
    most_nodes: ClassVar[int] = 1

    def build(self, workbench: Workbench) -> NoDrafter:
        return NoDrafter()

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> NoDraft | None:
        return cls()


class NoDrafter(Drafter):
    """Proposes nothing."""

    needs = NoDraft.needs

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [root_only(sequence.tokens[-1]) for sequence in context.sequences]
