"""The prompts of a bench, and the form in which the model gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from outrider.bench.selection import select
from outrider.errors import ConfigError
from outrider.models.files.tokenizer import Tokenizer
from outrider.prompts import BUILT_IN, Prompt, read

COMPLETE_CODE: Final = "Complete this Python function, answer with code only:\n"
"""Precedes bare function heads, so that an instruct model completes them and does not discuss them."""


def selected_prompts(path: Path | None, expression: str | None, limit: int | None) -> list[Prompt]:
    """Read and select prompts, each cut to its first question.

    Args:
        path: see :func:`outrider.prompts.read`.
        expression: see :func:`outrider.bench.selection.select`; None takes all.
        limit: most prompts; None takes all.

    Raises:
        ConfigError: the file cannot be read, a line is not a prompt, or no prompt is left.
    """
    chosen = select(expression) if expression else lambda number: True
    found = list(islice((_asked(prompt) for prompt in read(path) if chosen(prompt.number)), limit))
    if not found:
        total = sum(1 for _ in read(path))
        raise ConfigError(f"no prompt is left of the {total} in {path or BUILT_IN}; loosen --select or --limit")
    return found


def file_name(path: Path | None) -> str:
    """The file's name in results."""
    return BUILT_IN if path is None else path.name


def _asked(prompt: Prompt) -> Prompt:
    asked = prompt.asked()
    if not any("humaneval" in name.lower() for name in (prompt.id, prompt.category)):
        return asked
    if not asked.messages:
        return replace(asked, text=COMPLETE_CODE + asked.text)
    *before, (role, content) = asked.messages
    return replace(asked, messages=(*before, (role, COMPLETE_CODE + content)))


@dataclass(frozen=True)
class Encoded:
    """A prompt as token ids."""

    row: Prompt
    """The prompt in the file."""
    token_ids: tuple[int, ...]


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[Prompt], *, chat: bool) -> list[Encoded]:
    """Encode prompts, with or without the chat template."""
    return [Encoded(prompt, tuple(prompt.encode(tokenizer, chat=chat))) for prompt in prompts]


def form(prompts: Sequence[Prompt], *, chat: bool) -> dict[str, Any]:
    """The form of the prompts, for the result."""
    return {
        "chat_template": chat,
        "turn": "first",
        "bare_texts": sum(not prompt.messages for prompt in prompts),
        "with_history": sum(len(prompt.messages) > 1 for prompt in prompts),
        "code_prefix": COMPLETE_CODE,
        "prompts_with_code_prefix": sum(prompt.turns[-1]["content"].startswith(COMPLETE_CODE) for prompt in prompts),
    }
