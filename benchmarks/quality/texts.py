"""The texts that models are compared on: whole rows of prompt files, spread evenly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outrider.bench.selection import select
from outrider.errors import ConfigError


@dataclass(frozen=True)
class Text:
    """One row of a file."""

    file: str
    id: str
    text: str


def read_texts(files: Sequence[Path], fields: Sequence[str], expression: str | None, count: int) -> list[Text]:
    """Take the same number of rows from each file, evenly spaced among those that take part.

    Args:
        files: one JSON object a line.
        fields: keys whose strings make up a text, in turn where they hold lists: the user's first turn, the first
            answer, the user's second turn.
        expression: see :func:`outrider.bench.selection.select`; None lets every row of every file take part.
        count: of texts in all.

    Raises:
        ConfigError: a file holds fewer rows than its share, or a row has none of the fields.
    """
    takes_part = select(expression) if expression else lambda row: True
    texts = []
    for index, file in enumerate(files):
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        rows = [json.loads(line) for number, line in enumerate(lines) if takes_part(number)]
        share = count // len(files) + (index < count % len(files))
        if len(rows) < share:
            raise ConfigError(f"{share} texts are wanted of {file.name}, but {len(rows)} rows take part; lower --count")
        texts += [_text(file, rows[at * len(rows) // share], fields) for at in range(share)]
    return texts


def shared_starts(texts: Sequence[Sequence[int]]) -> list[int]:
    """How many tokens of each text are also the beginning of an earlier one: the same contexts, measured before.

    Args:
        texts: token ids.
    """
    seen: set[tuple[int, ...]] = set()
    found = []
    for tokens in texts:
        starts = [tuple(tokens[: length + 1]) for length in range(len(tokens))]
        found.append(sum(start in seen for start in starts))
        seen.update(starts)
    return found


def _text(file: Path, row: dict[str, Any], fields: Sequence[str]) -> Text:
    values = [row.get(field, []) for field in fields]
    turns = zip_longest(*([value] if isinstance(value, str) else value for value in values))
    text = "\n\n".join(part for turn in turns for part in turn if part)
    if not text:
        raise ConfigError(f"{file.name}: the row {row.get('id')!r} has none of the fields {', '.join(fields)}")
    return Text(file.name, str(row.get("id")), text)
