"""One process, or several that train one head together, each on its own batches."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

from outrider.errors import ConfigError


class Workers(Protocol):
    """The processes of a training; sums over them are all they exchange."""

    rank: int
    """Which of them this is; number 0 judges, writes and prints."""
    count: int
    device: torch.device

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all of them, the same bits on each."""
        ...


class Alone:
    """One process."""

    rank, count = 0, 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """See :class:`Workers`."""
        return values


class Together:
    """Several processes started by ``accelerate launch``, one per device."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self.rank: int = accelerator.process_index
        self.count: int = accelerator.num_processes
        self.device: torch.device = accelerator.device

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """See :class:`Workers`."""
        summed: torch.Tensor = self._accelerator.reduce(values, reduction="sum")
        return summed


def workers(device: torch.device) -> Workers:
    """The processes there are: as many as ``accelerate launch`` started, this one alone without it.

    Raises:
        ConfigError: several were started, but accelerate cannot be imported.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return Alone(device)
    try:
        from accelerate import Accelerator
    except ImportError:
        raise ConfigError("training in several processes needs accelerate: pip install accelerate") from None
    return Together(Accelerator(cpu=device.type == "cpu"))
