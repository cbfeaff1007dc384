"""Reads training prompts from files, and refuses evaluation prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from outrider.errors import ConfigError
from outrider.files import write_whole
from outrider.models.files.tokenizer import Tokenizer
from outrider.prompts import read
from outrider.prompts.prompt import USER
from outrider.train.data.decontaminate import EvaluationPrompts, evaluation_prompts

VALIDATION_SHARE: Final = 0.03
"""Share of prompts that are held out."""


@dataclass(frozen=True)
class TrainingPrompt:
    """A prompt: a conversation that ends with a user's turn, or text to continue."""

    messages: tuple[tuple[str, str], ...] = ()
    """Role and content of each turn."""
    text: str = ""
    """The text, if there are no messages."""

    @classmethod
    def asked(cls, question: str) -> TrainingPrompt:
        """A conversation of one question."""
        return cls(messages=((USER, question),))

    @cached_property
    def key(self) -> str:
        """A hash, equal for equal prompts in every process."""
        return hashlib.sha256(json.dumps([self.messages, self.text]).encode()).hexdigest()[:16]

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts of all turns."""
        return tuple(content for _, content in self.messages) or (self.text,)

    @property
    def for_validation(self) -> bool:
        """Whether the prompt is held out; depends on the prompt alone."""
        return int(self.key[:8], 16) < VALIDATION_SHARE * 2**32

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that :func:`training_prompts` reads."""
        if not self.messages:
            return {"text": self.text}
        return {"messages": [{"role": role, "content": content} for role, content in self.messages]}

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids up to the answer; without a chat template, a single question is plain text."""
        if not self.messages:
            return tokenizer.encode(self.text)
        if not tokenizer.chat_template and len(self.messages) == 1:
            return tokenizer.encode(self.messages[0][1])
        turns = [{"role": role, "content": content} for role, content in self.messages]
        return tokenizer.encode_chat(turns)


def training_prompts(paths: Sequence[Path], held_out: EvaluationPrompts | None = None) -> list[TrainingPrompt]:
    """Read the prompts of files, each once, without a final answer.

    Args:
        paths: see :func:`outrider.prompts.read`.
        held_out: evaluation prompts; None takes :func:`~outrider.train.data.decontaminate.evaluation_prompts`.

    Raises:
        ConfigError: a file cannot be read, or a line is not a prompt or holds an evaluation prompt; the message names
            file and line.
    """
    refused = evaluation_prompts() if held_out is None else held_out
    prompts: dict[str, TrainingPrompt] = {}
    for path in paths:
        for listed in read(path):
            prompt = TrainingPrompt(listed.unanswered, listed.text)
            for part in prompt.parts:
                if (words := refused.found_in(part)) is not None:
                    raise ConfigError(
                        f"{listed.place} contains the words {words!r} of an evaluation prompt, which must not be "
                        "trained on; remove the line"
                    )
            prompts[prompt.key] = prompt
    if not prompts:
        raise ConfigError(f"there is no prompt in {', '.join(map(str, paths)) or 'no file'}; give at least one line")
    return list(prompts.values())


def write_prompts(path: Path, prompts: Iterable[TrainingPrompt]) -> None:
    """Write prompts for :func:`training_prompts`, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(prompt.to_dict(), ensure_ascii=False) + "\n" for prompt in prompts))
