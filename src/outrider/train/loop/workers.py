"""The processes of a training: one, or several that train one head on different batches (data parallel)."""

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
"""How long processes wait for one another; long, because the first one answers prompts alone."""
_LOCK: Final = ".lock"


class Workers:
    """The processes of a training; this class is a single one.  They exchange only sums and the files of number 0."""

    rank = 0
    """The number of this process; number 0 evaluates, writes and prints."""
    count = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all processes, the same bits on each."""
        return values

    def first_alone(self) -> AbstractContextManager[None]:
        """A block that number 0 completes before the others start it, so that it can write files for them."""
        return nullcontext()

    def meet(self) -> None:
        """Wait for all processes."""


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
        finally:  # if the first fails, the others must not wait: they fail too, without its files
            if self.rank == 0:
                self.meet()

    def meet(self) -> None:
        self._accelerator.wait_for_everyone()


def workers(device: torch.device | None = None) -> Workers:
    """The processes that ``accelerate launch`` started, or this one.

    The first call assigns a device to each of several processes, so call it before loading a model.

    Args:
        device: device of a single process; None is the CPU.

    Raises:
        ConfigError: there are several processes, but accelerate is not installed.
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
    """Choose deterministic kernels; CPU kernels are."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)


@contextmanager
def locked(folder: Path, doing: str, flag: str) -> Iterator[None]:
    """Lock a folder against other processes; the system releases the lock when the process ends.

    Args:
        folder: created if missing.
        doing: what the process does there, for the message.
        flag: the option that names the folder.

    Raises:
        ConfigError: another process has the lock, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"another process is {doing} in {folder}; wait until it ends, or name another folder with {flag}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror or error}; name another with {flag}") from error
    try:
        yield
    finally:
        lock.release()
