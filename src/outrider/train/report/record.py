"""Everything a training measured, as CSV: one row per step, one per judgement."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from outrider.errors import TrainingError
from outrider.train.loop.state import write_whole


class Record:
    """A CSV file that grows; it may be taken back to an earlier row, as a resumed training does."""

    def __init__(self, path: Path, *, rows: int = 0) -> None:
        """Open a record.

        Args:
            path: the file; made if it is not there.
            rows: how many of its rows to keep.
        """
        self._path = path
        kept = list(csv.DictReader(io.StringIO(path.read_text())))[:rows] if rows and path.exists() else []
        self._columns: list[str] = list(kept[0]) if kept else []
        self.rows = len(kept)
        self._rewrite(kept)

    def add(self, row: Mapping[str, object]) -> None:
        """Write one row; a column not seen before is added to those before it, empty."""
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
        told = io.StringIO(newline="")
        writer = csv.DictWriter(told, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self._path, lambda file: file.write(told.getvalue().encode()))
