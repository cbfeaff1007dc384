"""An answer's text as it arrives, read by generators that wait for more.

A generator that reads says ``yield`` when it needs more text, so a format is written as one reads it, and the result
cannot depend on how the text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Final, TypeVar

from outrider.models.files.spellings import beginning_of
from outrider.server.tools.parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart, joined

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Reads a feed and waits for more text at each ``yield``."""
Sink = Callable[[str], None]

SPACE: Final = re.compile(r"\s*")
NEWLINES: Final = re.compile(r"[\r\n]*")


class Marks:
    """Spellings to look for in a text, with the newlines before them.

    Args:
        spellings: none finds nothing.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self.spellings = frozenset(spellings)
        self._pattern = re.compile(rf"\n*+(?:{beginning_of(self.spellings)}|\Z)" if self.spellings else r"\Z")

    def find(self, text: str, start: int) -> tuple[int, int, str | None]:
        """Find the first spelling, or what may be the beginning of one at the end.

        Returns:
            Where the newlines before it begin, where it ends, and the spelling; None if it is not whole.
        """
        found = self._pattern.search(text, start)
        if found is None:
            return len(text), len(text), None
        spelling = found[0].lstrip("\n")
        return found.start(), found.end(), spelling if spelling in self.spellings else None


@lru_cache(maxsize=64)
def marks_of(spellings: frozenset[str]) -> Marks:
    """Return what looks for spellings; models have up to a thousand special tokens, so it is kept."""
    return Marks(spellings)


class Feed:
    """The text of one answer that is not read yet, and the parts read so far.

    Args:
        new_id: makes the id of a call.
        hidden: spellings of special tokens, which are left out of content and reasoning.
    """

    def __init__(self, new_id: Callable[[], str], hidden: Iterable[str] = ()) -> None:
        self.ended = False
        self.reasoning = False
        """Whether the text read next is reasoning."""
        self.hidden = frozenset(hidden)
        self._new_id = new_id
        self._text = ""
        self._at = 0
        self._kept: int | None = None
        """Where the text begins that may have to be content; None if all that was read is decided."""
        self._calls = 0
        self._parts: list[Part] = []

    # The writer's side

    def add(self, text: str) -> None:
        """Add text."""
        used = self._at if self._kept is None else self._kept
        self._text = self._text[used:] + text
        self._at -= used
        self._kept = None if self._kept is None else 0

    def take_parts(self) -> list[Part]:
        """Take the parts since the last call."""
        parts, self._parts = joined(self._parts), []
        return parts

    # What is read becomes parts

    def say(self, text: str) -> None:
        """Add content."""
        self._parts.append(Content(text))

    def think(self, text: str) -> None:
        """Add reasoning."""
        self._parts.append(Reasoning(text))

    def start_call(self, name: str) -> None:
        """Begin a call; what was read on hold belongs to it."""
        self._kept = None
        self._parts.append(ToolCallStart(self._calls, self._new_id(), name))
        self._calls += 1

    def argue(self, text: str) -> None:
        """Add to the arguments of the last call."""
        self._parts.append(ToolCallArguments(self._calls - 1, text))

    # What was read may have to be given back

    def hold(self) -> None:
        """Keep what is read from here on until it is decided."""
        self._kept = self._at

    def release(self) -> None:
        """Drop what was read on hold."""
        self._kept = None

    def rewind(self) -> None:
        """Read again what was read on hold."""
        self._at = self._at if self._kept is None else self._kept
        self._kept = None

    def give_back(self) -> None:
        """Make content of what was read on hold, without special tokens."""
        self._undo(self.say)

    def _undo(self, sink: Sink) -> None:
        if self._kept is not None:
            text = self._text[self._kept : self._at]
            for spelling in self.hidden:
                text = text.replace(spelling, "")
            sink(text)
        self._kept = None

    # Reading

    def peek(self) -> Steps[str]:
        """Return the next character without taking it; "" at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def take(self, count: int) -> str:
        """Take characters that are known to be there."""
        self._at += count
        return self._text[self._at - count : self._at]

    def take_all(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Take what matches an expression that any beginning of a match matches too."""
        taken = ""
        while True:
            found = pattern.match(self._text, self._at)
            taken += self.take(found.end() - self._at if found else 0)
            if self._at < len(self._text) or self.ended:
                return taken
            yield

    def take_if(self, spelling: str) -> Steps[bool]:
        """Take a spelling if it comes next."""
        while True:
            there = self._text[self._at : self._at + len(spelling)]
            if there == spelling:
                self._at += len(spelling)
                return True
            if self.ended or not spelling.startswith(there):
                return False
            yield

    def copy_until(self, marks: Marks, sink: Sink) -> Steps[str | None]:
        """Copy text up to a spelling, and take it; newlines before it are left out.

        The spelling is on hold.  Returns None at the end of the text.
        """
        while True:
            start, end, found = marks.find(self._text, self._at)
            sink(self.take(start - self._at))
            if found is not None:
                self.hold()
                self._at = end
                return found
            if self.ended:
                sink(self.take(len(self._text) - self._at))
                return None
            yield

    def copy_text(self, marker: str, sink: Sink) -> Steps[bool]:
        """Copy text up to a marker, as :meth:`copy_until`, without the special tokens in it; False at the end."""
        marks = marks_of(frozenset(filter(None, {marker, *self.hidden})))
        while True:
            found = yield from self.copy_until(marks, sink)
            if found is None or found == marker:
                return found is not None
            self._undo(sink)

    def copy_value(self, sink: Sink) -> Steps[bool]:
        """Copy one JSON value as it is written; False if it breaks or the text ends first."""
        value = _Value()
        while True:
            sink(self.take(value.scan(self._text, self._at) - self._at))
            if value.done or value.broken or self.ended:
                return value.done
            yield


_IN_STRING: Final = re.compile(r'[^"\\]*')
_NESTED: Final = re.compile(r'[^"{}\[\]<]*')
_SCALAR: Final = re.compile(r'[^"{}\[\]<,\s]*')


class _Value:
    """Finds the end of a JSON value by its brackets and strings; a ``<`` outside strings breaks it."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def scan(self, text: str, at: int) -> int:
        """Return the end of what belongs to the value."""
        while at < len(text) and not self.done and not self.broken:
            at = self._string(text, at) if self._in_string else self._outside(text, at)
        return at

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.match(text, at)
        at = found.end() if found else at
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.done = self._depth == 0
        return at + 1

    def _outside(self, text: str, at: int) -> int:
        character = text[at]
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and self._depth:
            self._depth -= 1
            self.done = self._depth == 0
        elif character == "<":
            self.broken = True
            return at
        else:
            found = (_NESTED if self._depth else _SCALAR).match(text, at)
            end = found.end() if found else at
            self.done = end == at
            return end
        return at + 1
