"""Every failure that a user can cause or meet: one sentence on standard error, an exit code, and no traceback."""

from __future__ import annotations

import difflib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from outrider.cli import BAD_INPUT, BROKEN_PIPE, INTERRUPTED
from outrider.errors import OutriderError

USAGE: str = "UsageError"
"""What bad arguments are called in JSON; other errors go by the names of their classes."""


def guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command, and turn what goes wrong into one sentence.

    With ``--json`` among the arguments the error also goes to standard output, as the object
    ``{"error": {"message": …, "type": …}}``.

    Args:
        command: takes the arguments, returns the exit code.
        arguments: the command line.

    Returns:
        The exit code.
    """
    if sys.stdout is None:  # its number may be a file's by now, which must not be written to
        _say("standard output is closed, so there is no place for a result; give it a file or /dev/null")
        return BAD_INPUT
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character the terminal lacks is no reason to stop
    try:
        code = command(arguments)
        sys.stdout.flush()
    except OutriderError as error:
        return _refused(str(error), type(error).__name__, arguments)
    except CycloptsError as error:
        return _refused(sentence(error), USAGE, arguments)
    except KeyboardInterrupt:
        _write("\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader has left; nothing may be written to it at exit either
        _silence(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        _silence(sys.stdout)
        _say(f"{error.filename or 'the output'} cannot be read or written: {error.strerror or error}")
        _silence(sys.stderr)
        return BAD_INPUT
    return code


def _refused(message: str, kind: str, arguments: Sequence[str]) -> int:
    """Tell of bad input, and once more as JSON where that was asked for."""
    if _wants_json(arguments):
        try:
            sys.stdout.write(json.dumps({"error": {"message": _line(message), "type": kind}}) + "\n")
            sys.stdout.flush()
        except OSError:
            _silence(sys.stdout)
    _say(message)
    return BAD_INPUT


def _wants_json(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(word == "--json" or word.startswith("--json=") for word in options)


def _line(message: str) -> str:
    return " ".join(message.split())


def _say(message: str) -> None:
    _write(f"outrider: {_line(message)}\n")


def _write(text: str) -> None:
    """Write to standard error, which may be closed or full: then there is nobody left to tell."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _silence(stream: TextIO | None) -> None:
    """Drop what a stream still holds, so that nothing fails once more when the interpreter ends."""
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def sentence(error: CycloptsError) -> str:
    """What is wrong with the arguments, in one sentence."""
    if isinstance(error, UnknownOptionError):
        return _unknown(error.token.keyword or error.token.value, error.argument_collection)
    if isinstance(error, MissingArgumentError) and (strangers := _strangers(error)):
        return strangers
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        command = " ".join(("outrider", *(error.command_chain or ())))
        return f"{command} has no place for {error.unused_tokens[0]!r}; words that belong together need quotes"
    return str(error)


def _unknown(option: str, known: Iterable[Any]) -> str:
    """An option that does not exist, and the one that was probably meant."""
    option = option.split("=", 1)[0]
    names = [name for argument in known if argument.parse for name in argument.names]
    close = difflib.get_close_matches(option, names, n=1)
    text = "; a prompt that begins with - goes behind --" if not close else f"; did you mean {close[0]}?"
    return f"there is no option {option}{text}"


def _strangers(error: MissingArgumentError) -> str | None:
    """An unknown option beside a required one that is missing: it may be the missing one, misspelt."""
    left = [word for word in error.unused_tokens or () if word.startswith("--") and len(word) > len("--")]
    if not left or not isinstance(error.app, App):
        return None
    return _unknown(left[0], error.app.assemble_argument_collection())
