"""One training text: a prompt and what the target answers to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Example:
    """A prompt and its answer in the target's tokens.

    Raises:
        ValueError: the answer would begin before the text or after its end.
    """

    tokens: list[int]
    answer_start: int
    """Index of the answer's first token; only rows whose next token is at or after it are learned from."""

    def __post_init__(self) -> None:
        """Check what every reader relies on."""
        if not 0 < self.answer_start <= len(self.tokens):
            raise ValueError(f"the answer starts at {self.answer_start}, but the text has {len(self.tokens)} tokens")

    @cached_property
    def key(self) -> str:
        """A name that equal examples share: the same in every process."""
        text = f"{self.answer_start}:{','.join(map(str, self.tokens))}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
