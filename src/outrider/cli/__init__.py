"""The command line: one file per subcommand, imported when the subcommand runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from outrider.cli.commands import COMMANDS, GROUPS, INTERRUPTED, JSON_TO_FILES, PROMPTED, TAKES_DASH, WAITED_FOR

if TYPE_CHECKING:
    from cyclopts import App

_REST: Final = "--"
"""Everything after it is an argument, even if it begins with a dash."""
_JSON: Final = "--json"
_HELP: Final = frozenset({"--help", "-h"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; None takes the process's own.

    Returns:
        The exit code: 0; 1 if the task failed; 2 for bad input or a result that cannot be written.
    """
    arguments = _prepared(sys.argv[1:] if argv is None else list(argv))
    try:
        from outrider.cli.failures import guarded

        return guarded(_run, arguments)
    except KeyboardInterrupt:  # even while the first modules are imported
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    from outrider.cli import output

    if arguments and arguments[0] in WAITED_FOR:
        with output.waiting("starting"):
            import_module(f"outrider.cli.{arguments[0]}")
    words = list(arguments)
    everything = words[-1:] == ["all"] and bool(_HELP.intersection(words[-2:])) and _REST not in words
    app = _app(all_options=everything)
    asked = words[:-1] if everything else words
    code = app(asked, result_action="return_value", exit_on_error=False, print_error=False)
    return code if isinstance(code, int) else 0


def _prepared(arguments: Sequence[str]) -> list[str]:
    """Rewrite what the parser would misread: ``-`` as a value or as the prompt, and ``--json`` without its file."""
    words = list(arguments)
    command = words[0] if words else ""
    end = words.index(_REST) if _REST in words else len(words)
    head: list[str] = []
    behind = words[end:]
    for word in words[:end]:
        if word == "-" and head and head[-1] in TAKES_DASH.get(command, ()):
            head[-1] += "=-"
        elif word == "-" and command in PROMPTED:
            behind = [_REST, word, *words[end + 1 :]]
        else:
            head.append(word)
    if command in JSON_TO_FILES and not GROUPS.get(command, {}).keys() & set(head[1:2]):
        following = [*head[1:], _REST]
        bare = [word == _JSON and after.startswith("-") for word, after in zip(head, following, strict=True)]
        head = [f"{word}=-" if alone else word for word, alone in zip(head, bare, strict=True)]
    return [*head, *behind]


def _app(*, all_options: bool) -> App:
    from cyclopts import App

    from outrider import __version__
    from outrider.cli.help import OneScreen

    text = "Lossless speculative decoding: the same output, faster."
    app = App(name="outrider", help=text, version=__version__, help_formatter=OneScreen(all_options=all_options))
    app.suppress_keyboard_interrupt = False
    for name, line in COMMANDS.items():
        app.command(f"outrider.cli.{name}:{'app' if name in GROUPS else name}", name=name, help=line)
    return app


def group(name: str, default: Callable[..., int]) -> App:
    """A subcommand with subcommands of its own."""
    from cyclopts import App

    made = App(name=name, help=COMMANDS[name])
    made.default(default)
    for below, line in GROUPS[name].items():
        made.command(f"outrider.cli.{below}:{below}", name=below, help=line)
    return made
