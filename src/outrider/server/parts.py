"""Plain answers: all of the text is content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


class PlainParser:
    """Takes an answer's text as it arrives."""

    def push(self, text: str) -> Sequence[Content]:
        """Read more of the answer."""
        return [Content(text)] if text else []

    def finish(self) -> Sequence[Content]:
        """Read the end of the answer."""
        return []
