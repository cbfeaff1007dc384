"""Keeps a drafter's faults from reaching the output: one that raises or breaks its bounds is switched off."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outrider.drafters.base import DraftContext, Drafter, Outcome
from outrider.tree import TokenTree, root_only

_log = logging.getLogger(__name__)


class GuardedDrafter:
    """A drafter whose failures end drafting for the requests that met them, with a logged reason, and nothing else.

    A failure in ``propose`` or ``pause`` is traced to its request; one in ``observe`` ends drafting for the whole
    round's.

    Args:
        drafter: the drafter.
        vocabulary: token ids at or past this may not be drafted.
    """

    def __init__(self, drafter: Drafter, vocabulary: int) -> None:
        self._drafter, self._vocabulary, self._needs = drafter, vocabulary, drafter.needs
        self._off: set[str] = set()
        self.hidden_layers = tuple(sorted(set(drafter.needs.hidden_layers)))

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """How many of the rows that can be taken over may be; a drafter that fails has no say."""
        try:
            return min(most, max(0, self._drafter.adopt(key, tokens, most)))
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, its requests go on plain
            self._switch_off(key, error)
            return most

    def propose(self, context: DraftContext) -> list[TokenTree]:
        """A tree for every sequence: the drafter's where it may draft, else the anchor alone."""
        trees = [root_only(sequence.tokens[-1]) for sequence in context.sequences]
        wanted = [
            index
            for index, sequence in enumerate(context.sequences)
            if sequence.nodes > 1 and sequence.depth > 0 and sequence.key not in self._off
        ]
        if wanted:
            part = DraftContext(tuple(context.sequences[index] for index in wanted), context.draws)
            for index, tree in zip(wanted, self._propose(part), strict=True):
                trees[index] = tree
        return trees

    def observe(self, outcome: Outcome) -> None:
        """Tell the drafter what became of a round."""
        try:
            self._drafter.observe(outcome)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, its requests go on plain
            for sequence in outcome.committed:
                self._switch_off(sequence.key, error)

    def close(self, key: str) -> None:
        """Forget a request."""
        self._off.discard(key)
        self._let_go(key)

    def pause(self, key: str) -> None:
        """Give back a preempted request's pages."""
        try:
            self._drafter.pause(key)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, its requests go on plain
            self._switch_off(key, error)

    def _propose(self, part: DraftContext) -> list[TokenTree]:
        try:
            trees = self._drafter.propose(part)
            self._check(part, trees)
        except Exception as error:  # noqa: BLE001 - as above
            if len(part.sequences) > 1:  # find the request that made it fail
                return [self._propose(DraftContext((one,), part.draws))[0] for one in part.sequences]
            self._switch_off(part.sequences[0].key, error)
            return [root_only(part.sequences[0].tokens[-1])]
        return trees

    def _check(self, context: DraftContext, trees: Sequence[TokenTree]) -> None:
        for sequence, tree in zip(context.sequences, trees, strict=True):
            if tree.tokens[0] != sequence.tokens[-1]:
                raise ValueError("the tree's root is not the anchor")
            if len(tree) > sequence.nodes or max(tree.depths) > sequence.depth:
                raise ValueError(
                    f"the tree has {len(tree)} nodes and depth {max(tree.depths)}, "
                    f"but may have {sequence.nodes} and {sequence.depth}"
                )
            drawn_once = len(tree.candidates) == len(tree) - 1
            if not self._needs.branching and not (tree.is_chain and drawn_once):
                raise ValueError("the tree branches, which its drafter did not announce")
            if not self._needs.merged and any(candidate.source for candidate in tree.candidates):
                raise ValueError("the tree holds draws of several drafters, which its drafter did not announce")
            if not all(0 <= token < self._vocabulary for token in tree.tokens):
                raise ValueError("the tree holds a token the target does not have")

    def _switch_off(self, key: str, error: Exception) -> None:
        _log.warning("drafting ended for request %s, which goes on plain: %s: %s", key, type(error).__name__, error)
        self._off.add(key)
        self._let_go(key)

    def _let_go(self, key: str) -> None:
        try:
            self._drafter.close(key)
        except Exception:  # noqa: BLE001 - whatever a drafter does, its requests end as they should
            _log.exception("the drafter failed to let go of request %s", key)
