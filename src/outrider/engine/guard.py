"""Isolates faulty drafters: one that raises, hangs or exceeds its bounds is switched off for the request."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from outrider.drafters.base import DraftContext, Drafter, Outcome
from outrider.engine.watchdog import DraftTimeoutError, Watchdog
from outrider.tree import Candidate, TokenTree, root_only

_log = logging.getLogger(__name__)
_MOST_TIMEOUTS: Final = 3
"""After so many calls that did not return, a drafter is not called again."""
_ROUNDING: Final = 1e-6
"""Largest deviation from 1 that the sum of a distribution may have."""


class GuardedDrafter:
    """A drafter whose failures end drafting for the affected requests, with a logged reason, and change nothing else.

    A failure in ``propose`` or ``pause`` is traced to its request; one in ``observe`` ends drafting for the whole
    round's.  A drafter that does not return is interrupted, and drafting ends for all requests of that call; after a
    few such calls the drafter is never called again.

    Args:
        drafter: the drafter.
        vocabulary: token ids at or past this may not be drafted.
        watchdog: bounds the time of each call.
    """

    def __init__(self, drafter: Drafter, vocabulary: int, watchdog: Watchdog) -> None:
        self._drafter, self._vocabulary, self.needs = drafter, vocabulary, drafter.needs
        self._off: set[str] = set()
        self._call, self._timeouts = watchdog.call, 0
        self.switched_off: Counter[str] = Counter()
        """Requests for which drafting ended, by the reason: ``raised``, ``invalid`` or ``timeout``."""

    @property
    def _lost(self) -> bool:
        """Whether it is never called again."""
        return self._timeouts >= _MOST_TIMEOUTS

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """How many reusable rows to adopt; all of them if the drafter fails."""
        if self._lost:
            return most
        try:
            return min(most, max(0, self._call(self._drafter.adopt, key, tokens, most)))
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, its requests go on plain
            self._end(error, [key])
            return most

    def propose(self, context: DraftContext) -> list[TokenTree]:
        """A tree for every sequence: the drafter's, or only the anchor where drafting has ended."""
        if not self._off and not self._lost:
            return self._propose(context)
        trees = _anchors(context)
        if self._lost:
            return trees
        wanted = [index for index, sequence in enumerate(context.sequences) if sequence.key not in self._off]
        if wanted:
            part = replace(context, sequences=tuple(context.sequences[index] for index in wanted))
            for index, tree in zip(wanted, self._propose(part), strict=True):
                trees[index] = tree
        return trees

    def observe(self, outcome: Outcome) -> None:
        """Pass the outcome of a round to the drafter."""
        if self._lost:
            return
        try:
            self._call(self._drafter.observe, outcome)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, its requests go on plain
            self._end(error, [sequence.key for sequence in outcome.committed])

    def close(self, key: str) -> None:
        """Forget a request."""
        self._off.discard(key)
        self._let_go(key)

    def pause(self, key: str) -> None:
        """Give back a preempted request's pages."""
        if self._lost:
            return
        try:
            self._call(self._drafter.pause, key)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, its requests go on plain
            self._end(error, [key])

    def _propose(self, part: DraftContext) -> list[TokenTree]:
        reason = "raised"
        try:
            trees = self._call(self._listed, part)
            reason = "invalid"
            self._check(part, trees)
        except DraftTimeoutError as error:  # asking for each alone would take as long again
            self._end(error, [one.key for one in part.sequences])
            return _anchors(part)
        except Exception as error:  # noqa: BLE001 - as above
            if len(part.sequences) > 1:  # find the request that made it fail
                return [self._propose(replace(part, sequences=(one,)))[0] for one in part.sequences]
            self._end(error, [part.sequences[0].key], reason)
            return _anchors(part)
        return trees

    def _listed(self, part: DraftContext) -> list[TokenTree]:
        return list(self._drafter.propose(part))

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
            if not self.needs.branching and not (tree.is_chain and drawn_once):
                raise ValueError("the tree branches, which its drafter did not announce")
            if not self.needs.merged and any(candidate.source for candidate in tree.candidates):
                raise ValueError("the tree holds draws of several drafters, which its drafter did not announce")
            if not all(type(token) is int and 0 <= token < self._vocabulary for token in tree.tokens):
                raise ValueError("the tree holds a token the target does not have, or a non-integer token")
            if context.causal:
                self._check_laws(tree)

    def _check_laws(self, tree: TokenTree) -> None:
        """Check the distributions of a tree: a ratio rule trusts them, and a wrong one would bias the text."""
        sound: dict[int, str] = {}
        for candidate in tree.candidates:
            if candidate.q is None:
                if not self.needs.deterministic:
                    raise ValueError("the tree holds a draft without a law, which its drafter did not announce")
                continue
            if id(candidate.q) not in sound:
                sound[id(candidate.q)] = self._fault_of(candidate.q)
            if fault := sound[id(candidate.q)] or _fault_of_draw(candidate, tree.tokens[candidate.node]):
                raise ValueError(f"the law of a draft {fault}")

    def _fault_of(self, q: object) -> str:
        """What is wrong with a distribution; empty if nothing is."""
        if not isinstance(q, np.ndarray) or q.dtype != np.float64:
            return "is no NumPy array of float64"
        if q.shape != (self._vocabulary,):
            return f"has the shape {q.shape}, but the target has {self._vocabulary} tokens"
        if not (q.min() >= 0.0 and abs(q.sum() - 1.0) <= _ROUNDING):  # NaN is neither
            return "holds a number that is negative or none, or does not add up to 1"
        return ""

    def _end(self, error: Exception, keys: Sequence[str], reason: str = "raised") -> None:
        """Switch the drafter off for requests."""
        if isinstance(error, DraftTimeoutError):
            reason = "timeout"
            self._count_timeout()
        for key in keys:
            self._switch_off(key, error, reason)

    def _switch_off(self, key: str, error: Exception, reason: str) -> None:
        _log.warning(
            "drafting ended for request %s, which continues without drafts: %s: %s", key, type(error).__name__, error
        )
        self.switched_off[reason] += 1
        self._off.add(key)
        self._let_go(key)

    def _count_timeout(self) -> None:
        self._timeouts += 1
        if self._lost:
            _log.error("the drafter did not return %d times and is not called again", self._timeouts)

    def _let_go(self, key: str) -> None:
        if self._lost:
            return
        try:
            self._call(self._drafter.close, key)
        except DraftTimeoutError as error:
            self._count_timeout()
            _log.warning("the drafter failed to let go of request %s: %s", key, error)
        except Exception:  # noqa: BLE001 - whatever a drafter does, its requests end as they should
            _log.exception("the drafter failed to let go of request %s", key)


def _anchors(context: DraftContext) -> list[TokenTree]:
    return [root_only(sequence.tokens[-1]) for sequence in context.sequences]


def _fault_of_draw(candidate: Candidate, token: int) -> str:
    """Why a token cannot have been drawn from its distribution; empty if it can."""
    assert candidate.q is not None
    if token in candidate.removed:
        return "leaves out the draft itself"
    if any(type(other) is not int or not 0 <= other < len(candidate.q) for other in candidate.removed):
        return "leaves out a token that does not exist"
    return "" if candidate.q[token] > 0.0 else "gives the draft no chance"
