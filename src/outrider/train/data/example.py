"""One training text: a prompt and the target's answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Example:
    """A prompt and its answer as token ids.

    Raises:
        ValueError: the answer starts before the text or after its end.
    """

    tokens: list[int]
    answer_start: int
    """Index of the answer's first token; only rows whose next token is part of the answer count."""

    def __post_init__(self) -> None:
        if not 0 < self.answer_start <= len(self.tokens):
            raise ValueError(f"the answer starts at {self.answer_start}, but the text has {len(self.tokens)} tokens")

    @cached_property
    def key(self) -> str:
        """A hash, equal for equal examples in every process."""
        text = f"{self.answer_start}:{','.join(map(str, self.tokens))}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
