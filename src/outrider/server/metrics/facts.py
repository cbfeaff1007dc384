"""What is served, and how: the part of the figures that no round changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerFacts:
    """What is served, and how."""

    model: str
    """The name that the model is served under."""
    algorithm: str
    """The drafting method; ``none`` is plain decoding."""
    verifier: str
    """The acceptance rule."""
    backend: str
    """What computes the target."""
    max_running: int
    """Most running requests."""
    version: str
    """Version of Outrider."""
    algorithms: tuple[str, ...] = ()
    """All drafting methods that requests may choose."""
