"""Turns every failure into one sentence on standard error and an exit code, without a traceback."""

from __future__ import annotations

import difflib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, Literal, TextIO, get_args, get_origin

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from outrider.cli.commands import BAD_INPUT, BROKEN_PIPE, COMMANDS, GROUPS, INTERRUPTED, JSON_TO_FILES, PROMPTED
from outrider.errors import OutriderError

USAGE: str = "UsageError"
"""The JSON error type of bad arguments; other errors use the names of their classes."""
_KINDS: Final[dict[Any, str]] = {int: "a whole number", float: "a number", bool: "yes or no"}


def guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command, and turn errors into one sentence.

    With ``--json`` among the arguments the error also goes to standard output, as the object
    ``{"error": {"message": …, "type": …}}``.

    Args:
        command: takes the arguments, returns the exit code.
        arguments: the command line.

    Returns:
        The exit code.
    """
    if sys.stdout is None:  # its descriptor may belong to another file by now
        _say("standard output is closed; redirect it to a file or /dev/null")
        return BAD_INPUT
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape characters that the terminal does not have
    try:
        code = command(arguments)
        sys.stdout.flush()
    except OutriderError as error:
        return _refused(str(error), type(error).__name__, arguments)
    except CycloptsError as error:
        return _refused(sentence(error, arguments), USAGE, arguments)
    except KeyboardInterrupt:
        _write("\n")
        return INTERRUPTED
    except ImportError as error:
        if not _interrupted(error):
            raise
        return INTERRUPTED
    except BrokenPipeError:  # the reader is gone; write nothing more, at exit either
        _silence(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        _silence(sys.stdout)
        what = f"{error.filename} cannot be read or written" if error.filename else "the output cannot be written"
        _say(f"{what}: {error.strerror or error}")
        _silence(sys.stderr)
        return BAD_INPUT
    return code


def _refused(message: str, kind: str, arguments: Sequence[str]) -> int:
    """Report bad input, with ``--json`` also as JSON."""
    if _wants_json(arguments):
        try:
            sys.stdout.write(json.dumps({"error": {"message": _line(message), "type": kind}}) + "\n")
            sys.stdout.flush()
        except OSError:
            _silence(sys.stdout)
    _say(message)
    return BAD_INPUT


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused a failed import; lazy importers report only the import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON goes to standard output."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    below = GROUPS.get(words[0], {}) if words else {}
    if words and words[0] in JSON_TO_FILES and not below.keys() & set(words[1:2]):
        return "--json=-" in words or ("--json", "-") in pairwise(words)
    return any(word == "--json" or word.startswith("--json=") for word in words)


def _line(message: str) -> str:
    return " ".join(message.split())


def _say(message: str) -> None:
    _write(f"outrider: {_line(message)}\n")


def _write(text: str) -> None:
    """Write to standard error; if it is closed or full, drop the text."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _silence(stream: TextIO | None) -> None:
    """Discard a stream's buffer, so that flushing it at exit does not fail again."""
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def sentence(error: CycloptsError, arguments: Sequence[str] = ()) -> str:
    """What is wrong with the arguments, in one sentence.

    Args:
        error: the parser's error.
        arguments: the command line.
    """
    chain, left = list(error.command_chain or ()), list(error.unused_tokens or ())
    if isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        if option in _behind(arguments):
            return f"{option} comes after --, where everything is an argument; put options before --"
        return _unknown(option, error.argument_collection, chain)
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} may be given only once"
    if isinstance(error, CoercionError) and error.msg is None and error.token is not None:
        return f"{error.token.keyword or 'the argument'} takes {_wanted(error.target_type)}, not {error.token.value!r}"
    if isinstance(error, UnknownCommandError) and left:
        return f"there is no command {left[0]!r}" + (_close(left[0], COMMANDS) or f"; there are: {', '.join(COMMANDS)}")
    if isinstance(error, UnusedCliTokensError) and left:
        return f"unexpected argument {left[0]!r}; put quotes around a text of several words"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        known = error.app.assemble_argument_collection() if isinstance(error.app, App) else ()
        names = {"--", *_names(known)}
        for word in left:  # a misspelt option may be the missing one
            if known and word.startswith("--") and word.split("=", 1)[0] not in names:
                return _unknown(word, known, chain)
        given = error.keyword or next((token.keyword for token in error.argument.tokens if token.keyword), None)
        return f"{given} needs a value" if given else f"{' '.join(('outrider', *chain))} needs {error.argument.name}"
    return str(error)


def _behind(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[arguments.index("--") + 1 :] if "--" in arguments else ()


def _wanted(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) is Literal:
        *others, last = map(str, get_args(kind))
        return f"{', '.join(others)} or {last}"
    return _KINDS.get(kind, "another kind of value")


def _unknown(option: str, known: Iterable[Any], chain: Sequence[str]) -> str:
    """Names an unknown option, and the closest known one."""
    option = option.split("=", 1)[0]
    meant = _close(option, _names(known))
    prompted = "; put a prompt that begins with - after --" if PROMPTED.intersection(chain) else ""
    return f"there is no option {option}{meant or prompted}"


def _names(known: Iterable[Any]) -> list[str]:
    return [name for argument in known if argument.parse for name in argument.names]


def _close(word: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""
