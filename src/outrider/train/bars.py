"""What a person sees of work that takes minutes: a bar that names it on a terminal, one line without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

Tick = Callable[[int, str], None]
"""Told how much is done and a figure to show."""


def terminal_of(console: Console | None) -> Console | None:
    """Where the bars of a console's work go: there, or to standard error; None where neither is a terminal."""
    if console is None or console.quiet:
        return None
    beside = console if console.is_terminal else Console(stderr=True, highlight=False)
    return beside if beside.is_terminal else None


def live(console: Console | None, *columns: ProgressColumn) -> Progress:
    """A bar that comes between no lines of its console."""
    shown = terminal_of(console)
    return Progress(
        *columns,
        console=shown or Console(quiet=True),
        disable=shown is None,
        # What goes to a file must not be caught by the bar.
        redirect_stdout=shown is not None and not shown.stderr,
        transient=True,
    )


@contextmanager
def bar(title: str, total: int, console: Console | None) -> Iterator[Tick]:
    """A progress bar, or a line that says what begins where nobody would see one.

    Args:
        title: what is being done.
        total: how much there is to do; nothing is shown of nothing.
        console: where the lines go that tell what came of it; None is silent.
    """
    name, figure = TextColumn("{task.description}"), TextColumn("{task.fields[figure]}")
    if total and console is not None and terminal_of(console) is None:
        console.print(f"{title}: {total:,} …")
    with live(
        console if total else None, name, BarColumn(24), MofNCompleteColumn(), figure, TimeRemainingColumn()
    ) as progress:
        task = progress.add_task(title, total=total, figure="")
        yield lambda done, figure: progress.update(task, completed=done, figure=figure)


@contextmanager
def waiting(title: str, console: Console | None) -> Iterator[None]:
    """A sign of life on a terminal, for work that cannot tell how far it is."""
    with live(console, TextColumn("{task.description}"), BarColumn(24)) as progress:
        progress.add_task(title, total=None)
        yield
