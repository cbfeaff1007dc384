"""The progress of a training: a bar with live figures, and a line for each evaluation."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from outrider.train.bars import live, terminal_of
from outrider.train.evaluation.held_out import Evaluation


class LiveProgress:
    """A bar on a terminal, lines elsewhere; nothing without a console."""

    def __init__(self, console: Console | None, tokens: int, done: int = 0) -> None:
        self._console = console
        self._bar = live(
            console,
            TextColumn("training {task.percentage:>3.0f} %"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens {task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("training", total=tokens, completed=done, figures="")
        self._held_out = ""
        if console is not None and terminal_of(console) is None:
            console.print(f"training: {tokens:,} tokens{f', {done:,} of them done before' if done else ''} …")

    def __enter__(self) -> LiveProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        if self._console is not None:
            self._console.print(line)

    def step(self, tokens: int, loss: float, rate: float) -> None:
        """Show the state after a step: tokens so far, recent loss, and tokens per second."""
        figures = f"· {rate:,.0f}/s · loss {loss:.3f}{self._held_out}"
        self._bar.update(self._task, completed=tokens, figures=figures)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Print an evaluation."""
        by_position = " ".join(f"{rate:.2f}" for rate in evaluation.rates[:7])
        self._held_out = f" · held-out τ {evaluation.length:.2f} (α {by_position})"
        self.print(str(evaluation))
