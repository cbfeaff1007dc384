"""The progress of an audit: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import Progress

from outrider.audit.report import CheckResult, FaultResult, Stage


def run_stages(stages: Sequence[Stage], console: Console | None) -> Iterator[CheckResult | FaultResult]:
    """Run stages in order and yield their results.

    Args:
        stages: what to run.
        console: where to show progress; None shows nothing.
    """
    terminal = console is not None and console.is_terminal
    with Progress(console=console if terminal else Console(quiet=True), transient=True) as bar:
        task = bar.add_task("auditing", total=len(stages))
        for number, stage in enumerate(stages, 1):
            bar.update(task, description=stage.name)
            began = time.perf_counter()
            result = stage.run()
            bar.advance(task)
            if console is not None and not terminal:
                seconds = time.perf_counter() - began
                console.print(f"{number}/{len(stages)} {stage.name}: {result.word}, {seconds:.1f} s")
            yield result
