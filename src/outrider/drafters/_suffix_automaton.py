"""A suffix automaton that grows token by token: all substrings of a text, with their counts.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985; online construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ROOT: Final = 0
_NONE: Final = -1
_COUNT_STEPS: Final = 64


class SuffixAutomaton:
    """The automaton; a state is a class of substrings with the same end positions.

    ``following[s]`` maps a token to the next state, ``link[s]`` is the state of the longest proper suffix that also
    occurs elsewhere, ``length[s]`` is the length of the longest substring, and ``count[s]`` is how often it occurs.
    An added token updates the counts of a limited number of suffixes, the longest first.
    """

    def __init__(self) -> None:
        self.following: list[dict[int, int]] = [{}]
        self.link: list[int] = [_NONE]
        self.length: list[int] = [0]
        self.count: list[int] = [0]
        self.last = ROOT
        self.tokens = 0
        """Number of tokens."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)
        self.tokens += len(tokens)

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Extend a match by the next token of a text.

        A match is the state of the text's longest suffix in the automaton, and its length.
        """
        while state != ROOT and token not in self.following[state]:
            state = self.link[state]
            matched = self.length[state]
        if token in self.following[state]:
            return self.following[state][token], matched + 1
        return ROOT, 0

    def _append(self, token: int) -> None:
        current = self._new_state(self.length[self.last] + 1, {})
        state = self.last
        while state != _NONE and token not in self.following[state]:
            self.following[state][token] = current
            state = self.link[state]
        self.link[current] = ROOT if state == _NONE else self._class_of(state, token)
        self.last = current
        for _ in range(_COUNT_STEPS):
            self.count[current] += 1
            current = self.link[current]
            if current <= ROOT:
                break

    def _class_of(self, state: int, token: int) -> int:
        """The state of a state's longest substring plus a token; split off if its class has longer substrings."""
        target = self.following[state][token]
        if self.length[target] == self.length[state] + 1:
            return target
        clone = self._new_state(self.length[state] + 1, dict(self.following[target]))
        self.link[clone], self.count[clone] = self.link[target], self.count[target]
        self.link[target] = clone
        while state != _NONE and self.following[state].get(token) == target:
            self.following[state][token] = clone
            state = self.link[state]
        return clone

    def _new_state(self, length: int, following: dict[int, int]) -> int:
        self.following.append(following)
        self.link.append(_NONE)
        self.length.append(length)
        self.count.append(0)
        return len(self.length) - 1
