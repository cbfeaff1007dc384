"""Plain decoding, without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters.base import DraftContext, Needs, Outcome, Workbench, register
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


class NoDrafter:
    """Proposes nothing."""

    needs = NoDraft.needs

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        return most

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [root_only(sequence.tokens[-1]) for sequence in context.sequences]

    def observe(self, outcome: Outcome) -> None:
        """Do nothing: nothing depends on it."""

    def pause(self, key: str) -> None:
        """Do nothing: nothing depends on it."""

    def close(self, key: str) -> None:
        """Do nothing: nothing depends on it."""
