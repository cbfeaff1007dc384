"""Files that are whole or not there: a reader finds the old content or the new one, whenever the writer is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PARTIAL: Final = ".partial"
"""End of the name of a file that is still being written."""


@contextmanager
def replacing(path: Path, *, suffix: str = PARTIAL, synced: bool = True) -> Iterator[Path]:
    """A path to write to, which takes a file's place when the block ends, and is removed if it fails.

    Args:
        path: the file; its folder is there.
        suffix: what the name to write to adds; processes that may write the same file at once need different ones.
        synced: wait until the content is on the disk before it takes the place.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    partial = path.with_name(path.name + suffix)
    try:
        yield partial
        if synced:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes | str, *, suffix: str = PARTIAL, synced: bool = True) -> None:
    """Write a file, text in UTF-8; see :func:`replacing`."""
    with replacing(path, suffix=suffix, synced=synced) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
