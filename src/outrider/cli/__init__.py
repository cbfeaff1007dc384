"""The command line, one file per subcommand; a subcommand's file is imported only when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cyclopts import App

COMMANDS: Final = {
    "generate": "Complete one prompt.",
    "chat": "Talk to a model; accepted drafts are shown in another shade.",
    "bench": "Measure what speculation gains, method against method.",
    "study": "Tabulate what makes drafters fast: quality, acceptance, latency.",
    "train": "Train a drafter for your own model, on its own answers.",
    "export": "Write a trained head in another project's format.",
    "audit": "Prove on your own model that speculation changes nothing.",
    "models": "List the models that can be called by name.",
    "info": "Show versions and hardware; with --methods drafting methods, their options, and acceptance rules.",
}
"""Every subcommand: file ``cli/<name>.py`` with a function of the same name, and its line in the help."""
GROUPS: Final = {"bench": {"kernels": "Time the CPU kernels and a model's passes against the memory's bandwidth."}}
"""Subcommands below a subcommand, likewise."""
PROMPTED: Final = frozenset({"generate"})
"""Subcommands whose argument is a prompt, for which ``-`` stands too: standard input."""
JSON_TO_FILES: Final = frozenset({"bench", "study"})
"""Subcommands whose ``--json`` names a file, ``-`` being standard output; those below them print it."""
WAITED_FOR: Final = frozenset({"generate", "chat"})
"""Subcommands that a person at a terminal waits for: the seconds in which torch is imported are told."""

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
_REST: Final = "--"
"""What follows is no option, whatever it looks like."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; None takes the process's own.

    Returns:
        The exit code: 0, 1 when what was asked for failed, 2 for bad input or a result that cannot be written.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        from outrider.cli.failures import guarded

        return guarded(_run, arguments)
    except KeyboardInterrupt:  # even while the first modules are imported
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    from outrider.cli import output

    words = _standard_input(arguments)
    if words and words[0] in WAITED_FOR:
        with output.waiting("starting"):
            import_module(f"outrider.cli.{words[0]}")
    code = _app()(words, result_action="return_value", exit_on_error=False, print_error=False)
    return code if isinstance(code, int) else 0


def _standard_input(arguments: Sequence[str]) -> list[str]:
    """Put the prompt ``-`` where the parser does not take it for an option: behind ``--``."""
    words = list(arguments)
    end = words.index(_REST) if _REST in words else len(words)
    if not words or words[0] not in PROMPTED or "-" not in words[:end]:
        return words
    return [*(word for word in words[:end] if word != "-"), _REST, "-", *words[end + 1 :]]


def _app() -> App:
    from cyclopts import App

    from outrider import __version__
    from outrider.cli.help import OneScreen

    text = "Speculative decoding that changes nothing about the output."
    app = App(name="outrider", help=text, version=__version__, help_formatter=OneScreen())
    app.suppress_keyboard_interrupt = False
    for name, line in COMMANDS.items():
        app.command(f"outrider.cli.{name}:{'app' if name in GROUPS else name}", name=name, help=line)
    return app


def group(name: str, default: Callable[..., int]) -> App:
    """A subcommand that has some of its own below it."""
    from cyclopts import App

    made = App(name=name, help=COMMANDS[name])
    made.default(default)
    for below, line in GROUPS[name].items():
        made.command(f"outrider.cli.{below}:{below}", name=below, help=line)
    return made
