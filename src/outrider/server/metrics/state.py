"""The engine's state at this moment: requests, pages, and what has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outrider.engine.engine import Engine
from outrider.requests.stopping import FinishReason


class EngineState(NamedTuple):
    """What the engine holds now."""

    running: int = 0
    """Requests that have pages."""
    waiting: int = 0
    """Requests in the queue."""
    kv_use: float = 0.0
    """Share of the target's pages that requests own; cached prefixes without an owner count as free."""
    shares: bool = False
    """Whether the prefix cache is on."""
    preemptions: int = 0
    """How often a running request was preempted."""
    ended: Mapping[FinishReason, int] = {}
    """Ended requests, by reason."""
    switched_off: Mapping[str, int] = {}
    """Requests whose drafting ended because the drafter failed, by the reason."""


def state_of(engine: Engine | None) -> EngineState:
    """Read an engine's state from any thread.

    Requests may come and go between rounds, when no observer is told, so this is read when somebody asks.  It reads
    lengths and copies dicts of plain keys, each of which is one atomic step.  The figures may be of two moments a few
    microseconds apart, which does not matter for gauges.

    Args:
        engine: None, after it was freed, has an empty state.
    """
    if engine is None:
        return EngineState()
    scheduler, cache = engine.scheduler, engine.cache
    switched_off: dict[str, int] = {}
    for drafter in engine.drafting.drafters:
        for reason, count in dict(drafter.switched_off).items():
            switched_off[reason] = switched_off.get(reason, 0) + count
    return EngineState(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_use=min(1.0, max(0.0, 1.0 - cache.free_rows / cache.slots)),
        shares=cache.shares,
        preemptions=scheduler.counts.preemptions,
        ended=dict(scheduler.ended),
        switched_off=switched_off,
    )
