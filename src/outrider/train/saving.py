"""Writes the files of a training atomically, with a clear error if the disk is full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from outrider.errors import TrainingError
from outrider.files import replacing


@contextmanager
def saving(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a training, to replace it as a whole.

    Raises:
        TrainingError: the disk is full, or the folder cannot be written.
    """
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            yield file
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise TrainingError(f"{path} cannot be written: {error.strerror or error}") from error
        if isinstance(error, RuntimeError) and "file write failed" not in str(error):  # torch's word for a full disk
            raise
        raise TrainingError(
            f"the disk is full: {path} could not be written; free some space and run the same command again to resume "
            "from the last state"
        ) from error
