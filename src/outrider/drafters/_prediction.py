"""Follows an output through the text that was predicted for it, and finds its place again after an edit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_VOUCHED: Final = 8
"""Matched tokens that the beginning of a prediction counts as: the user says that the output resembles it."""
_FIRM: Final = 4
"""A match of so many tokens is followed without looking for a better one."""
_LONGEST: Final = 16
"""Most tokens that are compared to tell two places apart."""
_NEAR: Final = 32
"""A single token is matched only so many tokens ahead of the place where the text left the prediction."""
_CANDIDATES: Final = 32
"""Places that are compared on either side of it, so a search takes bounded time."""


class PredictionCursor:
    """The place of an output in its predicted text.

    It starts at the beginning of both, and moves on while the output repeats the prediction.  After an edit it looks
    for the output's last tokens: the longest match wins; of equals, the nearest ahead.

    Args:
        prediction: token ids.
        prompt_length: where the output begins.
    """

    def __init__(self, prediction: Sequence[int], prompt_length: int) -> None:
        self._text, self._begin, self._seen = prediction, prompt_length, prompt_length
        self._place, self._matched = 0, _VOUCHED
        self._ends: dict[int, list[int]] = {}
        for end, token in enumerate(prediction, 1):
            self._ends.setdefault(token, []).append(end)

    def follow(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Follow the tokens committed since the last call.

        Args:
            tokens: committed token ids, prompt first.

        Returns:
            Where the prediction continues the text, and the number of matched tokens; 0 is no match.
        """
        text = self._text
        if not text:
            return 0, 0
        if self._seen < len(tokens):
            for token in tokens[self._seen :]:
                if self._place < len(text) and text[self._place] == token:
                    self._place, self._matched = self._place + 1, self._matched + 1
                else:
                    self._matched = 0
            self._seen = len(tokens)
            if self._matched < _FIRM:
                self._search(tokens)
        return self._place, self._matched if self._place < len(text) else 0

    def _search(self, tokens: Sequence[int]) -> None:
        """Find the end of the output near the place where it left the prediction."""
        ends = self._ends.get(tokens[-1], ())
        middle = bisect_left(ends, self._place)
        best = (self._matched, 0, 0)
        for end in ends[max(0, middle - _CANDIDATES) : middle + _CANDIDATES]:
            ahead = end - 1 - self._place
            length = self._common(tokens, end)
            if length > 1 or 0 <= ahead < _NEAR:
                best = max(best, (length, -ahead if ahead >= 0 else -len(self._text) + ahead, end))
        if best[0] > self._matched:
            self._matched, _, self._place = best

    def _common(self, tokens: Sequence[int], end: int) -> int:
        """How many of the output's last tokens stand before a place in the prediction."""
        last = len(tokens)
        most = min(_LONGEST, end, last - self._begin)
        length = 1
        while length < most and tokens[last - 1 - length] == self._text[end - 1 - length]:
            length += 1
        return length
