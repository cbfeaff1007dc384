"""Prompt files, and the form in which a prompt reaches the model: part of the workload, so it is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outrider.bench.selection import select
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.llm import LLM

COMPLETE_CODE: Final = "Complete this Python function, answer with code only:\n"
"""Put in front of bare function heads, which an instruct model would otherwise discuss."""


@dataclass(frozen=True)
class Row:
    """One row of a prompt file."""

    number: int
    id: str
    category: str
    text: str
    """The first user turn, as the model is asked it."""


def read_prompts(path: Path, expression: str | None, limit: int | None) -> list[Row]:
    """The rows of a JSONL prompt file that take part.

    Args:
        path: one JSON object a line: ``{"id", "category", "turns": [user's turns]}``.
        expression: see :func:`outrider.bench.selection.select`; None takes all.
        limit: take at most this many of them; None takes all.

    Raises:
        ConfigError: the file cannot be read, a line is not a prompt, or nothing is left.
    """
    chosen = select(expression) if expression else lambda row: True
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read: {error}") from error
    filled = [line for line in lines if line.strip()]
    rows = [_row(path, number, line) for number, line in enumerate(filled) if chosen(number)][:limit]
    if not rows:
        raise ConfigError(f"no prompt is left of the {len(filled)} in {path}; loosen --select or --limit")
    return rows


def _row(path: Path, number: int, line: str) -> Row:
    try:
        value: Any = json.loads(line)
        row_id, category, text = str(value["id"]), str(value["category"]), value["turns"][0]
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(f'{path}: row {number} is not {{"id", "category", "turns": [text, …]}}') from None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{path}: the first turn of row {number} is empty")
    prefix = COMPLETE_CODE if "humaneval" in row_id.lower() or "humaneval" in category.lower() else ""
    return Row(number, row_id, category, prefix + text)


@dataclass(frozen=True)
class Prompt:
    """A row in the model's own tokens."""

    row: Row
    token_ids: tuple[int, ...]


def encode_prompts(llm: LLM, rows: Sequence[Row], *, chat: bool) -> list[Prompt]:
    """Tokens of every row, through the chat template or bare."""
    return [
        Prompt(row, tuple(llm.encode_chat([{"role": "user", "content": row.text}]) if chat else llm.encode(row.text)))
        for row in rows
    ]


def form(rows: Sequence[Row], *, chat: bool) -> dict[str, Any]:
    """The form of the prompts, for the record."""
    return {
        "chat_template": chat,
        "turn": "first",
        "code_prefix": COMPLETE_CODE,
        "prompts_with_code_prefix": sum(row.text.startswith(COMPLETE_CODE) for row in rows),
    }
