"""Records of a training: CSV files with a row per step or evaluation, and seconds by phase."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from outrider.errors import TrainingError
from outrider.train.saving import saving

JUDGING: Final = "judging"
"""The phase of evaluations."""


class Record:
    """A CSV file that grows, and that a resumed training cuts back to an earlier row.

    Args:
        path: the file; it is created if missing.
        rows: the number of rows to keep.
    """

    def __init__(self, path: Path, *, rows: int = 0) -> None:
        self._path = path
        kept = list(csv.DictReader(io.StringIO(path.read_text())))[:rows] if rows and path.exists() else []
        self._columns: list[str] = list(kept[0]) if kept else []
        self.rows = len(kept)
        self._rewrite(kept)

    def add(self, row: Mapping[str, object]) -> None:
        """Write one row; a new column is empty in earlier rows."""
        new = [name for name in row if name not in self._columns]
        if new:
            before = list(csv.DictReader(io.StringIO(self._path.read_text())))
            self._columns += new
            self._rewrite(before)
        try:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(dict(row))
        except OSError as error:
            raise TrainingError(
                f"{self._path} cannot be written ({error.strerror}); free some space and run the same command again"
            ) from error
        self.rows += 1

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        with saving(self._path) as file:
            file.write(text.getvalue().encode())


class Stopwatch:
    """Seconds spent in each phase."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block, and wait for queued work of an accelerator."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def total(self, without: str = "") -> float:
        """Seconds of all phases but one."""
        return max(1e-9, sum(seconds for name, seconds in self.seconds.items() if name != without))

    def shares(self) -> dict[str, float]:
        """Each phase's share of the time."""
        return {name: seconds / self.total() for name, seconds in self.seconds.items()}
