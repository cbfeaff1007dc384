"""Progress bars for work that takes minutes: a bar on a terminal, one line elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

Tick = Callable[[int, str], None]
"""Called with how much is done and a figure to show."""


def terminal_of(console: Console | None) -> Console | None:
    """The terminal for a console's progress bars: its own or standard error; None if neither is a terminal."""
    if console is None or console.quiet:
        return None
    beside = console if console.is_terminal else Console(stderr=True, highlight=False)
    return beside if beside.is_terminal else None


def live(console: Console | None, *columns: ProgressColumn) -> Progress:
    """A progress bar that does not break up the lines of its console."""
    shown = terminal_of(console)
    return Progress(
        *columns,
        console=shown or Console(quiet=True),
        disable=shown is None,
        # The bar must not capture output to a file.
        redirect_stdout=shown is not None and not shown.stderr,
        transient=True,
    )


@contextmanager
def bar(title: str, total: int, console: Console | None) -> Iterator[Tick]:
    """A progress bar; without a terminal, one line with the title.

    Args:
        title: the work.
        total: the number of steps; 0 shows nothing.
        console: where to show it; None is silent.
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
    """A moving bar on a terminal, for work of unknown length."""
    with live(console, TextColumn("{task.description}"), BarColumn(24)) as progress:
        progress.add_task(title, total=None)
        yield
