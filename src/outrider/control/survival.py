"""How likely drafts are accepted: the drafters' own estimates, corrected by what became of them.

A drafter's confidence is not its acceptance.  So the chance of a draft, given that its parent was accepted, is learned
by method, depth and the confidence that the drafter told, and then once more for each request: texts differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outrider.tree import TokenTree

_DEPTHS: Final = (1, 2, 3, 5, 9)
"""First depth of each class."""
_BINS: Final = 10
_PRIOR: Final = 6.0
"""Weight of the drafter's own estimate, in tests."""
_MODESTY: Final = 0.9
"""Factor of the drafter's own estimate before anything was tested."""
_MEMORY: Final = 2000.0
"""Tests after which a cell's past counts half."""
_OWN_PRIOR: Final = 4.0
_OWN_MEMORY: Final = 40.0
"""The same for one request's own correction."""
_MOST: Final = 0.995


class _Count:
    """Decaying counts of tests and hits."""

    __slots__ = ("hits", "tests")

    def __init__(self, hits: float, tests: float) -> None:
        self.hits, self.tests = hits, tests

    def add(self, hit: bool, memory: float) -> None:
        if self.tests > memory:
            self.hits *= 0.5
            self.tests *= 0.5
        self.tests += 1.0
        self.hits += hit


class OwnCorrection:
    """One request's accepted drafts over those that the shared estimates expected."""

    def __init__(self) -> None:
        self._expected = self._accepted = _OWN_PRIOR / 2

    @property
    def factor(self) -> float:
        """Factor for the shared estimate of a chance."""
        return self._accepted / self._expected

    def add(self, expected: float, hit: bool) -> None:
        """Book one test."""
        keep = 1.0 - 1.0 / _OWN_MEMORY
        prior = (1.0 - keep) * _OWN_PRIOR / 2  # what is forgotten returns to the shared estimate
        self._expected = self._expected * keep + prior + expected
        self._accepted = self._accepted * keep + prior + hit


class SurvivalEstimates:
    """Chances of acceptance, learned from all requests that an engine serves; no text is kept."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int, int], _Count] = {}

    def survival(self, method: str, tree: TokenTree, own: OwnCorrection) -> list[float]:
        """For each node, the chance that it and all nodes above it are accepted."""
        told, parents, depths, forced, factor = tree.survival, tree.parents, tree.depths, tree.forced, own.factor
        chances = [1.0] * len(tree)
        for node in range(1, len(tree)):
            parent = parents[node]
            if node in forced:
                chances[node] = chances[parent]
            else:
                own_told = told[node] / told[parent] if told[parent] else 0.0
                chances[node] = chances[parent] * min(_MOST, factor * self._chance(method, depths[node], own_told))
        return chances

    def observe(self, method: str, tree: TokenTree, emitted: Sequence[int], own: OwnCorrection) -> None:
        """Learn what became of a tree, as far as the emitted tokens tell; it need not have been verified."""
        node = 0
        for token in emitted:
            following = None
            for child in tree.children[node]:
                hit = tree.tokens[child] == token
                following = child if hit else following
                if child not in tree.forced:
                    told = tree.survival[child] / tree.survival[node] if tree.survival[node] else 0.0
                    cell = self._cell(method, tree.depths[child], told)
                    own.add(cell.hits / cell.tests, hit)
                    cell.add(hit, _MEMORY)
            if following is None:
                return
            node = following

    def _chance(self, method: str, depth: int, told: float) -> float:
        cell = self._cell(method, depth, told)
        return cell.hits / cell.tests

    def _cell(self, method: str, depth: int, told: float) -> _Count:
        place = sum(depth >= first for first in _DEPTHS)
        key = method, place, min(_BINS - 1, int(told * _BINS))
        cell = self._cells.get(key)
        if cell is None:
            middle = (key[2] + 0.5) / _BINS
            cell = self._cells[key] = _Count(_PRIOR * _MODESTY * middle, _PRIOR)
        return cell
