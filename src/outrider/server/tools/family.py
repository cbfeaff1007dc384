"""What the parser and the grammar know of a family of formats."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.server.tools.feed import Feed, Steps
from outrider.server.tools.functions import Function


@dataclass(frozen=True)
class Written:
    """How calls are written, as the chat template writes them; markers are part of the texts."""

    name: str
    """Before a call's name."""
    arguments: str
    """Between its name and its arguments."""
    end: str
    """After its arguments."""
    before: str = ""
    """Before the first call."""
    between: str = ""
    """Between two calls."""
    after: str = ""
    """After the last call."""


@dataclass(frozen=True)
class ToolFamily:
    """A format of tool calls."""

    signs: tuple[str, ...]
    """Regular expressions; a chat template that one of them matches writes calls so."""
    markers: tuple[str, ...]
    """Spellings that begin, divide or end calls; in some tokenizers they are special tokens."""
    opener: str
    """The marker that begins a call anywhere in an answer; "" if calls only begin the answer, without a marker."""
    read: Callable[[Feed, Sequence[Function]], Steps[None]]
    """Reads an answer to its end, given the functions that were offered."""
    written: Callable[[str], Written]
    """How calls are written, given the chat template."""
    new_id: Callable[[], str]
    """Makes the id of a call."""


def long_id() -> str:
    """Make an id as OpenAI's are."""
    return f"call_{secrets.token_hex(12)}"
