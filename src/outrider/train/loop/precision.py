"""Chooses the precision to train in by timing, because bf16 is slower than fp32 on many processors."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch

from outrider.train.settings import PRECISIONS

TRIAL_SECONDS: Final = 5.0


@dataclass(frozen=True)
class PrecisionTimes:
    """The time of a step in each precision."""

    seconds: dict[str, float]
    """Seconds of the fastest step."""

    @property
    def fastest(self) -> str:
        """The precision to train in."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    def __str__(self) -> str:
        tried = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in self.seconds.items())
        return f"precision: {self.fastest} (a step takes: {tried})"


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """A context that runs forward passes in a precision; weights stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def time_precisions(step: Callable[[str], None], seconds: float = TRIAL_SECONDS) -> PrecisionTimes:
    """Time a step in each precision, in turns and at least once.

    Args:
        step: runs forward and backward in a precision, and changes nothing.
        seconds: how long to try.
    """
    fastest: dict[str, float] = {}
    end = time.perf_counter() + seconds
    while len(fastest) < len(PRECISIONS) or time.perf_counter() < end:
        for name in PRECISIONS:
            begun = time.perf_counter()
            step(name)
            fastest[name] = min(fastest.get(name, float("inf")), time.perf_counter() - begun)
    return PrecisionTimes(fastest)
