"""Earlier outputs, kept apart by the salt of their requests, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from outrider.drafters._suffix_automaton import SuffixAutomaton

SEPARATOR: Final = -1
BYTES_PER_TOKEN: Final = 1200
"""Upper bound for one corpus token: two states with their transitions; a test measures it."""
_EMPTY: Final = 3
"""Tokens that an empty corpus counts as."""


class Corpus:
    """Outputs of earlier requests: when the new half is full, the old half is dropped.

    Only verified tokens enter, when their request ends.

    Args:
        most: maximum tokens.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._halves = [SuffixAutomaton(), SuffixAutomaton()]

    @property
    def tokens(self) -> int:
        """Tokens held, separators included."""
        return sum(half.tokens for half in self._halves)

    def add(self, tokens: Sequence[int]) -> None:
        """Add an output."""
        if self._halves[0].tokens + len(tokens) + 1 > self._half:
            self._halves = [SuffixAutomaton(), self._halves[0]]
        self._halves[0].extend([SEPARATOR, *tokens[: self._half - 1]])

    def halves(self) -> list[SuffixAutomaton]:
        """The automata in use, the new one first."""
        return [half for half in self._halves if half.tokens]


class Corpora:
    """One corpus per salt, so that no request drafts from a text of another salt.

    All of them share the memory: the least recently used corpus is dropped when it is full.

    Args:
        megabytes: maximum memory; 0 keeps nothing.
    """

    def __init__(self, megabytes: int) -> None:
        self._most = megabytes * 2**20 // BYTES_PER_TOKEN
        self._of: OrderedDict[str | None, Corpus] = OrderedDict()
        self._held = 0

    @property
    def tokens(self) -> int:
        """Tokens that all corpora count as."""
        return self._held

    def add(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Add an output to the corpus of its salt."""
        if not self._most or not tokens:
            return
        corpus = self._of.get(salt)
        if corpus is None:
            corpus = self._of[salt] = Corpus(self._most - _EMPTY)
            self._held += _EMPTY
        self._of.move_to_end(salt)
        before = corpus.tokens
        corpus.add(tokens)
        self._held += corpus.tokens - before
        while self._held > self._most:  # the newest alone never is
            _, dropped = self._of.popitem(last=False)
            self._held -= _EMPTY + dropped.tokens

    def halves(self, salt: str | None) -> list[SuffixAutomaton]:
        """The automata of a salt's corpus, the new one first; it is now the most recently used."""
        corpus = self._of.get(salt)
        if corpus is None:
            return []
        self._of.move_to_end(salt)
        return corpus.halves()
