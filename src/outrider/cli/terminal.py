"""The terminal of a chat: reads messages, and wraps streamed text between words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.cells import cell_len

from outrider.errors import ConfigError, cause

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

_QUOTES: Final = '"""'
"""Starts and ends a message of several lines."""
_HISTORY: Final = Path(".cache") / "outrider" / "chat_history"
_READABLE_BY_OWNER: Final = 0o600


class MessageReader(Protocol):
    """Where messages come from."""

    def read(self) -> str | None:
        """The next message; None at the end.

        Raises:
            ConfigError: standard input is not text.
        """
        ...


def reader() -> MessageReader:
    """Choose a reader for standard input: an editor with history on a terminal, plain lines elsewhere.

    Raises:
        ConfigError: standard input is closed.
    """
    if sys.stdin is None:
        raise ConfigError("standard input is closed; a chat needs a terminal, a pipe or a file")
    return Editor() if sys.stdin.isatty() and sys.stdout.isatty() else Lines()


class Lines:
    """Reads messages from a pipe or a file, one per line; triple quotes enclose longer ones."""

    def read(self) -> str | None:
        try:
            text = sys.stdin.readline()
            while _is_open(text) and (more := sys.stdin.readline()):
                text += more
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"standard input cannot be read: {cause(error)}") from error
        return _unquoted(text) if text else None


class Editor:
    """Reads typed messages with line editing, history, and multi-line input."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import get_app
        from prompt_toolkit.filters import Condition

        self._session: PromptSession[str] = PromptSession(
            history=_history(Path.home() / _HISTORY),
            key_bindings=_keys(),
            multiline=Condition(lambda: _is_open(get_app().current_buffer.text)),
            prompt_continuation="… ",
        )

    def read(self) -> str | None:
        """The next message; Ctrl-C discards the line and Ctrl-D ends the chat."""
        try:
            return _unquoted(self._session.prompt("> "))
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None


def _history(file: Path) -> History:
    """The history file; in memory if the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=_READABLE_BY_OWNER)
        with file.open("ab"):
            return FileHistory(file)
    except OSError:
        return InMemoryHistory()


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _is_open(text: str) -> bool:
    """Whether triple quotes are open."""
    text = text.strip()
    return text.startswith(_QUOTES) and (len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES))


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[len(_QUOTES) :].removesuffix(_QUOTES).strip("\n") if text.startswith(_QUOTES) else text


class Wrap:
    """Wraps streamed text between words; it holds back a word until the word is complete.

    Args:
        width: gives the terminal's width, which may change.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column = 0
        self._gap = ""
        self._word: list[tuple[str, bool]] = []
        self._cells = 0
        self._whole = True

    def feed(self, text: str, marked: bool) -> Iterator[tuple[str, bool]]:
        """Take a piece of text.

        Args:
            text: any piece.
            marked: passed on with every part of it.

        Returns:
            The pieces that can be shown now.
        """
        for character in text:
            if character == "\n":
                yield from self.flush()
                yield "\n", marked
                self._column, self._gap = 0, ""
            elif character.isspace():
                yield from self.flush()
                self._gap += character
            else:
                cells = cell_len(character)
                if cells > 1:  # wide scripts have no spaces and may wrap anywhere
                    yield from self.flush()
                self._word.append((character, marked))
                self._cells += cells
                if cells > 1:
                    yield from self.flush()
                elif self._cells >= self._width():  # longer than a line: the terminal wraps it
                    yield from self.flush()
                    self._whole = False

    def flush(self) -> Iterator[tuple[str, bool]]:
        """Show the held-back word."""
        whole, self._whole = self._whole, True
        if not self._word:
            return
        if whole and self._column and self._column + cell_len(self._gap) + self._cells > self._width():
            yield "\n", False
            self._column = 0
        elif self._gap:
            yield self._gap, False
            self._column += cell_len(self._gap)
        yield from self._word
        self._column += self._cells
        self._gap, self._word, self._cells = "", [], 0
