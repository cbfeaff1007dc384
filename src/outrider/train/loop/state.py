"""The state of a training on disk: whole or not at all, whenever the process is killed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from outrider.errors import TrainingError

TRAINING: Final = "training"
"""Folder, beside what is trained, of its state and its record."""
STATE: Final = "state.pt"


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that a reader finds the old one or the new one, never a part.

    Raises:
        TrainingError: the disk is full, or the folder cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise TrainingError(f"{path} cannot be written: {error.strerror or error}") from error
        if isinstance(error, RuntimeError) and "file write failed" not in str(error):
            raise
        raise TrainingError(
            f"the disk is full: {path} could not be written; free some space and run the same command again, "
            "it goes on from the last state that was"
        ) from error


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state of tensors and plain values.

    Raises:
        TrainingError: the disk is full, or the folder cannot be written.
    """
    write_whole(path, lambda file: torch.save(dict(state), file))


def fingerprint(network: torch.nn.Module) -> str:
    """A hash of a network's weights, which names them."""
    return fingerprint_of(network.state_dict())


def fingerprint_of(weights: Mapping[str, torch.Tensor]) -> str:
    """The same of weights by name."""
    found = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        found.update(name.encode())
        found.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def load_state(path: Path) -> dict[str, Any] | None:
    """Read a state back, or None where there is none.

    Raises:
        TrainingError: the file is damaged.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError("it holds something else")
    except Exception as error:
        raise TrainingError(f"{path} is damaged ({_first_line(error)}); remove it to begin anew") from error
    return state


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]
