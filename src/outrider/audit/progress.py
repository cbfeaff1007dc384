"""How far an audit is: a bar on a terminal, one line for each stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, TaskID


class Watcher(Protocol):
    """Is told of every stage."""

    def begin(self, name: str) -> None:
        """A stage begins."""
        ...

    def end(self, word: str) -> None:
        """It has ended, with a result in a word or two."""
        ...


class Nobody:
    """Does not want to know."""

    def begin(self, name: str) -> None:
        """Do nothing: nothing depends on it."""

    def end(self, word: str) -> None:
        """Do nothing: nothing depends on it."""


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def begin(self, name: str) -> None:
        self._bar.update(self._task, description=name)

    def end(self, word: str) -> None:
        self._bar.advance(self._task)


class _Lines:
    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._number = console, total, 0
        self._name, self._began = "", 0.0

    def begin(self, name: str) -> None:
        self._name, self._began, self._number = name, time.perf_counter(), self._number + 1

    def end(self, word: str) -> None:
        seconds = time.perf_counter() - self._began
        self._console.print(f"{self._number}/{self._total} {self._name}: {word}, {seconds:.1f} s")


@contextmanager
def watching(console: Console | None, total: int) -> Iterator[Watcher]:
    """Show how far an audit is.

    Args:
        console: where; None shows nothing.
        total: how many stages there are.
    """
    if console is None:
        yield Nobody()
    elif console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            yield _Bar(bar, bar.add_task("auditing", total=total))
    else:
        yield _Lines(console, total)
