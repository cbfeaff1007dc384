"""Where the time of a training goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

JUDGING: Final = "judging"
"""The phase that is no part of training."""


class Stopwatch:
    """Seconds spent in each phase, as they add up."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside; work queued on an accelerator is waited for."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def total(self, without: str = "") -> float:
        """Seconds of all phases but one."""
        return max(1e-9, sum(spent for name, spent in self.seconds.items() if name != without))

    def shares(self) -> dict[str, float]:
        """Each phase's share of the time."""
        return {name: spent / self.total() for name, spent in self.seconds.items()}
