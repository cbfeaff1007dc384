"""Encodes and decodes with a library whose single calls hold the interpreter's lock, and whose batches do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import tokenizers

_LONG: Final = 4096
"""Characters or tokens from which other threads would notice: a million take a second.  A batch costs microseconds."""


def ids_of(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text; other threads go on meanwhile."""
    if len(text) < _LONG:
        return backend.encode(text, add_special_tokens=add_special_tokens).ids
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def text_of(backend: tokenizers.Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """The text of ids; other threads go on meanwhile."""
    if len(ids) < _LONG:
        return backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
    return backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]
