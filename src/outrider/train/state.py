"""The state of a training on disk: whole or not at all, whenever the process is killed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch

from outrider.errors import TrainingError


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
    found = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        found.update(name.encode())
        found.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def load_state(
    path: Path, identity: Mapping[str, object], defaults: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Any] | None:
    """Read a state back, or None where there is none.

    Args:
        path: the file.
        identity: options that must be those it was written under.
        defaults: what options stood for that a state does not name, which is older than they are; whatever else it does
            not name is as it is now.

    Raises:
        TrainingError: the file is damaged, or was written under other options; the first that differs is named.
    """
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known = {name: defaults.get(name, value) for name, value in identity.items()}
        before = known | state["identity"]
    except Exception as error:
        raise TrainingError(f"{path} is damaged ({error}); remove it to begin anew") from error
    for name in sorted(before.keys() | identity.keys()):
        if before.get(name) != identity.get(name):
            raise TrainingError(
                f"{path.parent} holds a training with {name} = {before.get(name)!r}, not {identity.get(name)!r}; "
                "go on with the same options, or choose another folder"
            )
    return state
