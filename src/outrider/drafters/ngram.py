"""Prompt lookup: finds the last few tokens earlier in the text and copies what followed them.

Source: Saxena, "Prompt lookup decoding", 2023.  The longest match wins; of equally long ones, the latest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from outrider.drafters._prediction import PredictionCursor
from outrider.drafters.base import DraftContext, Drafter, DraftSequence, Needs, Workbench, register, tokens_option
from outrider.errors import ConfigError
from outrider.options import Role, check_options, option
from outrider.tree import TokenTree

if TYPE_CHECKING:
    from collections.abc import Sequence


@register
@dataclass(frozen=True)
class Ngram:
    """Options of prompt lookup."""

    method: ClassVar[str] = "ngram"
    automatic_rank: ClassVar[int] = 1
    needs: ClassVar[Needs] = Needs(deterministic=True, reads_prediction=True)

    num_draft_tokens: int = tokens_option(8)
    max_match: int = option(
        4,
        "Longest match to look for; longer matches are more reliable.",
        low=1,
        high=64,
        flag="speculative-ngram-max-match",
        role=Role.LONGEST_MATCH,
    )
    min_match: int = option(
        2,
        "Shortest match to accept. Raise it if many drafts are rejected.",
        low=1,
        high=64,
        flag="speculative-ngram-min-match",
        role=Role.SHORTEST_MATCH,
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)
        if self.min_match > self.max_match:
            raise ConfigError(f"ngram: min_match ({self.min_match}) must not exceed max_match ({self.max_match})")

    @property
    def most_nodes(self) -> int:
        return 1 + self.num_draft_tokens

    def build(self, workbench: Workbench) -> NgramDrafter:
        return NgramDrafter(self)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Ngram | None:
        return cls()


class NgramIndex:
    """Last end of each n-gram of a growing text, for n from ``min_match`` to ``max_match``."""

    def __init__(self, config: Ngram) -> None:
        self._lengths = range(config.max_match, config.min_match - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Find where the text's last tokens stood before.

        The time grows only with the tokens appended since the last call.

        Returns:
            Start of the continuation, and the number of matched tokens; 0 is no match.
        """
        for end in range(self._indexed + 1, len(tokens)):  # only n-grams with a continuation
            for length in self._lengths:
                if length <= end:
                    self._after[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for length in self._lengths:
            if length <= len(tokens) and (start := self._after.get(tuple(tokens[-length:]))) is not None:
                return start, length
        return 0, 0


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of one request's text."""

    index: NgramIndex
    cursor: PredictionCursor


class NgramDrafter(Drafter):
    """Keeps one index per request, and its place in the request's prediction."""

    needs = Ngram.needs

    def __init__(self, config: Ngram) -> None:
        self._config = config
        self._known: dict[str, _Known] = {}

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [one.builder().chain(self._continued(one)).build() for one in context.sequences]

    def _continued(self, sequence: DraftSequence) -> list[int]:
        """Copy what followed the longer match, the one in the text or the one in the prediction."""
        most = min(self._config.num_draft_tokens, sequence.nodes - 1, sequence.depth)
        known = self._known.get(sequence.key)
        if known is None:
            cursor = PredictionCursor(sequence.prediction, sequence.prompt_length)
            known = self._known[sequence.key] = _Known(NgramIndex(self._config), cursor)
        start, length = known.index.match(sequence.tokens)
        place, matched = known.cursor.follow(sequence.tokens)
        if matched and matched >= length:
            return list(sequence.prediction[place : place + most])
        return copied(sequence.tokens, start, most if length else 0)

    def close(self, key: str) -> None:
        self._known.pop(key, None)


def copied(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """Copy ``count`` tokens from ``start`` on; a copy that reaches the end of the text repeats itself."""
    period = len(tokens) - start
    return [tokens[start + offset % period] for offset in range(count)]
