"""A bar with a figure beside it, for steps that take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Tick = Callable[[int, str], None]
"""Told how much is done and a figure to show."""


@contextmanager
def bar(title: str, total: int, *, shown: bool) -> Iterator[Tick]:
    """A progress bar on standard error.

    Args:
        title: what is being done.
        total: how much there is to do.
        shown: False shows nothing.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figure]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task(title, total=total, figure="")
        yield lambda done, figure: progress.update(task, completed=done, figure=figure)
