"""One process at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from outrider.errors import ConfigError

_NAME: Final = ".lock"


@contextmanager
def alone(folder: Path, doing: str, flag: str) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends.

    Args:
        folder: made where it is missing.
        doing: what would be done there at once, for the message.
        flag: that names the folder.

    Raises:
        ConfigError: another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _NAME)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another process is {doing} in {folder}; wait until it has ended, or name another folder with {flag}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror or error}; name another with {flag}") from error
    try:
        yield
    finally:
        lock.release()
