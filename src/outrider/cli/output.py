"""Where the subcommands print: consoles, JSON, files, and what shows that something is going on."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from outrider.errors import ConfigError, cause

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from outrider.completion import Chunk
    from outrider.models.files.tokenizer import Tokenizer

ACCEPTED_STYLE: Final = "green"
_FILE_WIDTH: Final = 140


def screen() -> Console:
    """The console of standard output."""
    return _console(stderr=False)


def side() -> Console:
    """The console of standard error, for what is not the result."""
    return _console(stderr=True)


def tell(text: str, *, style: str = "", indent: int = 0, console: Console | None = None) -> None:
    """Print a line for a person; a terminal too narrow for it gets several, broken between words.

    Args:
        text: the line.
        style: how it looks.
        indent: columns before every line but the first.
        console: where to; by default to standard error.
    """
    place = side() if console is None else console
    if place.is_terminal:
        text = fill(text, place.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    place.print(text, style=style)


class _Console(Console):
    """A console whose reader may leave: whoever runs the command is told, as for any other write."""

    def on_broken_pipe(self) -> None:
        """Go on raising what was raised."""
        raise


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _FILE_WIDTH  # a file has no edge that tables must fit into
    return console


def write_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(json.dumps(finite(value), ensure_ascii=not unicode) + "\n")


def check_writable(*files: Path | None) -> None:
    """Find out before the work, not after it, that a result has nowhere to go.

    Raises:
        ConfigError: naming the file, and the folder that is missing or what is in the way.
    """
    for file in files:
        if file is None or file == Path("-"):
            continue
        if str(file).startswith("-"):
            raise ConfigError(f"{file} is no file for a result but looks like an option; write ./{file} if it is one")
        if not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.parent}")
        if file.is_dir() or not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
            raise ConfigError(f"{file} cannot be written: it is a folder, or not yours to write")


def write_result(result: dict[str, Any], file: Path | None) -> None:
    """Write a bench's result to a file; to standard output, ``-``, all but the single runs goes as one line.

    Raises:
        ConfigError: the file cannot be written.
    """
    if file == Path("-"):
        write_json({key: value for key, value in result.items() if key != "samples"})
    elif file is not None:
        write_text(file, json.dumps(result, ensure_ascii=False, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write a file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {cause(error)}") from error


@contextmanager
def progress(title: str) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """A progress bar where a terminal shows it: what tells it how many steps there are, and what counts one."""
    from rich.progress import Progress

    console = side()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield (lambda total: bar.update(task, total=total), lambda: bar.advance(task))


def waiting(what: str) -> AbstractContextManager[object]:
    """A spinner, where a terminal shows it, for as long as something takes."""
    console = side()
    return console.status(f"{what} …") if console.is_terminal else nullcontext()


def finite(value: Any) -> Any:
    """The same with None for numbers JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


class Shades:
    """Tells which part of a streamed text came from accepted drafts.

    The chunks' own text is what counts: it ends where a stop string begins and holds back what may become one.  The
    tokens are decoded once more beside it, only to know which token each character belongs to.

    Args:
        tokenizer: makes the text.
        skip_special_tokens: as the request was told.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._stream = tokenizer.stream(skip_special_tokens)
        self._waiting: list[tuple[str, bool]] = []

    def split(self, chunk: Chunk) -> Iterator[tuple[str, bool]]:
        """The chunk's text in pieces, each with whether a draft brought it."""
        self._waiting += [
            (self._stream.push(token), place < chunk.drafted) for place, token in enumerate(chunk.token_ids)
        ]
        left = len(chunk.text)
        while left and self._waiting:
            text, drafted = self._waiting.pop(0)
            if len(text) > left:
                self._waiting.insert(0, (text[left:], drafted))
            yield text[:left], drafted
            left -= len(text[:left])
