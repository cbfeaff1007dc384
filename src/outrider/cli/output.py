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

from cyclopts import Parameter
from rich.console import Console

from outrider.errors import ConfigError, cause

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from outrider.completion import Chunk
    from outrider.models.files.tokenizer import Tokenizer

ACCEPTED_STYLE: Final = "green"
AS_JSON: Final = Parameter(name="--json", negative="")
"""The flag of subcommands that print one JSON object."""
_FILE_WIDTH: Final = 140


def screen() -> Console:
    """The console of standard output."""
    return _console(stderr=False)


def side() -> Console:
    """The console of standard error, for everything but the result."""
    return _console(stderr=True)


def tell(text: str, *, style: str = "", indent: int = 0, console: Console | None = None) -> None:
    """Print a line; on a terminal, wrap it between words.

    Args:
        text: the line.
        style: rich's style.
        indent: spaces before every line but the first.
        console: where to print; None is standard error.
    """
    place = side() if console is None else console
    if place.is_terminal:
        text = fill(text, place.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    place.print(text, style=style)


class _Console(Console):
    """A console that raises ``BrokenPipeError`` like any other write."""

    def on_broken_pipe(self) -> None:
        """Raise it again."""
        raise


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _FILE_WIDTH  # tables in a file need not fit a screen
    return console


def write_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    sys.stdout.write(json.dumps(finite(value), ensure_ascii=not unicode) + "\n")


def check_writable(*files: Path | None) -> None:
    """Check before the work that results can be written.

    Raises:
        ConfigError: a file cannot be written; the message says why.
    """
    for file in files:
        if file is None or file == Path("-"):
            continue
        if str(file).startswith("-"):
            raise ConfigError(f"{file} looks like an option, not like a file; write ./{file} for a file of this name")
        if not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: the folder {file.parent} does not exist")
        if file.is_dir() or not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
            raise ConfigError(f"{file} cannot be written: it is a folder, or you lack permission")


def write_result(result: dict[str, Any], file: Path | None) -> None:
    """Write a bench's result to a file; ``-`` prints it without the single runs, on one line.

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
    """A progress bar on a terminal.

    Returns:
        Two functions: one sets the number of steps, the other counts one step.
    """
    from rich.progress import Progress

    console = side()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield (lambda total: bar.update(task, total=total), lambda: bar.advance(task))


def waiting(what: str) -> AbstractContextManager[object]:
    """A spinner on a terminal while something takes time."""
    console = side()
    return console.status(f"{what} …") if console.is_terminal else nullcontext()


def finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


class Shades:
    """Splits a streamed text into accepted drafts and other tokens.

    The text is the chunks' own, which stops before a stop string.  The tokens are decoded again only to find out which
    token each character belongs to.

    Args:
        tokenizer: decodes the tokens.
        skip_special_tokens: as in the request.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._stream = tokenizer.stream(skip_special_tokens)
        self._waiting: list[tuple[str, bool]] = []

    def split(self, chunk: Chunk) -> Iterator[tuple[str, bool]]:
        """The chunk's text in pieces, each with whether it was an accepted draft."""
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
