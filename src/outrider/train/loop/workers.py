"""The processes of a training: one, or several that train one head together, each on its own batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from filelock import FileLock, Timeout

from outrider.errors import ConfigError

_PATIENCE: Final = timedelta(days=7)
"""How long processes wait for one another, since the first one answers prompts alone."""
_LOCK: Final = ".lock"


class Workers:
    """The processes of a training: this one alone.  Sums over them and the files of number 0 are all they exchange."""

    rank = 0
    """Which of them this is; number 0 evaluates, writes and prints."""
    count = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all of them, the same bits on each."""
        return values

    def first_alone(self) -> AbstractContextManager[None]:
        """A block that number 0 completes before any other begins it, so that it can leave files for the others."""
        return nullcontext()

    def meet(self) -> None:
        """Wait until all have come here."""


class LaunchedWorkers(Workers):
    """Several processes started by ``accelerate launch``, one per device."""

    def __init__(self, accelerator: Any) -> None:
        super().__init__(accelerator.device)
        self._accelerator = accelerator
        self.rank, self.count = accelerator.process_index, accelerator.num_processes

    def total(self, values: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self._accelerator.reduce(values, reduction="sum")
        return summed

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        if self.rank:
            self.meet()
        try:
            yield
        finally:  # the others must not wait for one that has failed: they fail for want of what it was to leave
            if self.rank == 0:
                self.meet()

    def meet(self) -> None:
        self._accelerator.wait_for_everyone()


def workers(device: torch.device | None = None) -> Workers:
    """The processes there are: as many as ``accelerate launch`` started, this one alone without it.

    Several take a device each when this is first called, so call it before a model is loaded.

    Args:
        device: where one process alone trains; None is the CPU.  Several train where accelerate puts each.

    Raises:
        ConfigError: several were started, but accelerate cannot be imported.
    """
    return Workers(device) if int(os.environ.get("WORLD_SIZE", "1")) < 2 else _launched()


@cache
def _launched() -> LaunchedWorkers:
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError:
        raise ConfigError("training in several processes needs accelerate: pip install accelerate") from None
    return LaunchedWorkers(Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)]))


def repeatable(device: torch.device) -> None:
    """Choose kernels that give the same bits each time; CPU kernels do already."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


@contextmanager
def locked(folder: Path, doing: str, flag: str) -> Iterator[None]:
    """Keep other processes out of a folder; the system releases it when the process ends, however it ends.

    Args:
        folder: made where it is missing.
        doing: what two processes would be doing there at once, for the message.
        flag: that names the folder.

    Raises:
        ConfigError: another process holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
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
