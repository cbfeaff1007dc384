"""The protocol of a controller: it shares draft rows among requests, prunes trees, and observes what rounds cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.config import SpeculationDefault
from outrider.metrics import RoundStats
from outrider.requests.turn import Turn


@dataclass(frozen=True)
class LoadedMethod:
    """A drafting method that an engine has loaded, as a controller sees it."""

    name: str
    """What requests call it."""
    most_nodes: int
    """Most nodes of its trees, anchor included."""
    reads_prediction: bool = False
    """Whether it drafts from a request's prediction."""


class Observer(Protocol):
    """Is told of every round."""

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Observe a round: what was accepted and what it cost.  Runs between two rounds, so it must be quick."""
        ...


class Controller(Observer, Protocol):
    """Decides how much each request drafts.  It changes only the speed: every budget gives the same text."""

    most_nodes: int
    """Largest ``nodes`` that a budget may have."""
    default: SpeculationDefault
    """What requests do that leave their speculation open; the engine changes it between two rounds."""

    def budgets(self, turns: Sequence[Turn], draft_rows: int) -> None:
        """Set each turn's ``budget``, before anything is drafted.

        Under a ratio rule a budget may rest on nothing but what is committed.

        Args:
            turns: of the round; a turn that reaches no anchor has no budget to set.
            draft_rows: rows of the pass that drafts may take, all requests together.
        """
        ...

    def prune(self, turns: Sequence[Turn]) -> None:
        """Cut draft trees.  Called only under rules that accept a draft if it is the target's own token."""
        ...
