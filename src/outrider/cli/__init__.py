"""The command line, one file per subcommand; a subcommand's file is imported only when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from cyclopts import App, CycloptsError

from outrider import __version__
from outrider.errors import OutriderError

COMMANDS: Final = {
    "generate": "Complete one prompt.",
    "chat": "Talk to a model; accepted drafts are shown in another shade.",
    "bench": "Measure what speculation gains, method against method.",
    "study": "Tabulate what makes drafters fast: quality, acceptance, latency.",
    "train": "Train a drafter for your own model, on its own answers.",
    "export": "Write a trained head in another project's format.",
    "audit": "Prove on your own model that speculation changes nothing.",
    "models": "List the models that can be called by name.",
    "info": "Show versions, hardware, drafting methods with their options, and acceptance rules.",
}
"""Every subcommand: file ``cli/<name>.py`` with a function of the same name, and its line in the help."""
GROUPS: Final = {"bench": {"kernels": "Time the CPU kernels and a model's passes against the memory's bandwidth."}}
"""Subcommands below a subcommand, likewise."""

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; None takes the process's own.

    Returns:
        The exit code: 0, 1 when what was asked for failed, 2 for bad input.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _app()(arguments, result_action="return_value", exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (OutriderError, CycloptsError) as error:
        sys.stderr.write(f"outrider: {_sentence(error)}\n")
        return BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader has left; nothing may be written to it at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code if isinstance(code, int) else 0


def _app() -> App:
    app = App(name="outrider", help="Speculative decoding that changes nothing about the output.", version=__version__)
    app.suppress_keyboard_interrupt = False
    for name, line in COMMANDS.items():
        app.command(f"outrider.cli.{name}:{'app' if name in GROUPS else name}", name=name, help=line)
    return app


def group(name: str, default: Callable[..., int]) -> App:
    """A subcommand that has some of its own below it."""
    made = App(name=name, help=COMMANDS[name])
    made.default(default)
    for below, line in GROUPS[name].items():
        made.command(f"outrider.cli.{below}:{below}", name=below, help=line)
    return made


def _sentence(error: Exception) -> str:
    """An error on one line."""
    return " ".join(str(error).split())
