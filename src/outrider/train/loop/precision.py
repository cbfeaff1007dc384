"""Which precision trains faster here is tried, not assumed: bf16 is the slower one on many processors."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch

from outrider.train.settings import PRECISIONS

PROBE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Probe:
    """What the trial found."""

    seconds: dict[str, float]
    """The fastest step of each precision."""

    @property
    def fastest(self) -> str:
        """The precision to train in."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    def __str__(self) -> str:
        """One line to print."""
        tried = ", ".join(f"{name} {spent * 1000:.0f} ms" for name, spent in self.seconds.items())
        return f"precision: {self.fastest} (a step takes: {tried})"


def under(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The context in which a forward pass runs in a precision; weights stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def probe(step: Callable[[str], None], seconds: float = PROBE_SECONDS) -> Probe:
    """Time a step in each precision, by turns, for as long as given; each is tried at least once.

    Args:
        step: runs forward and backward in a precision and changes nothing.
        seconds: how long to try.
    """
    fastest: dict[str, float] = {}
    end = time.perf_counter() + seconds
    while len(fastest) < len(PRECISIONS) or time.perf_counter() < end:
        for name in PRECISIONS:
            begun = time.perf_counter()
            step(name)
            fastest[name] = min(fastest.get(name, float("inf")), time.perf_counter() - begun)
    return Probe(fastest)
