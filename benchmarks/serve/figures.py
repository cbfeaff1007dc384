"""The figures of a measurement."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from client import Answer, Client
from servers import Server


def percentiles(values: Sequence[float], scale: float = 1.0) -> dict[str, float | int | None]:
    """Count, median and 99th percentile."""
    some = len(values) > 0
    low, high = (float(scale * np.percentile(values, share)) if some else None for share in (50, 99))
    return {"count": len(values), "p50": low, "p99": high}


def slope(places: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the straight line through points, by least squares; 0 for fewer than two places."""
    if len(set(places)) < 2:
        return 0.0
    return float(np.polyfit(np.asarray(places, float), np.asarray(values, float), 1)[0])


def median(values: Sequence[float | None]) -> float | None:
    """The median of the values that there are."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


async def timed(
    server: Server, work: Callable[[Client], Awaitable[list[Answer]]]
) -> tuple[list[Answer], dict[str, Any]]:
    """Send requests to a server and measure the whole.

    Args:
        server: the server.
        work: sends the requests and returns the answers.

    Returns:
        The answers, and the figures: tokens, seconds, tokens per second, time to first token, errors, CPU seconds.
    """
    client = Client(server.base, server.arm.extra)
    own, theirs, begun = time.process_time(), server.cpu_s, time.perf_counter()
    answers = await work(client)
    seconds, used, spent = time.perf_counter() - begun, server.cpu_s, time.process_time() - own
    client.close()
    tokens, events = sum(answer.tokens for answer in answers), sum(len(answer.events) for answer in answers)
    return answers, {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "first_token_ms": percentiles([answer.first_token_s for answer in answers if answer.first_token_s], 1e3),
        "errors": problems(answers),
        "server_cpu_s": None if used is None or theirs is None else used - theirs,
        "client_cpu_s": spent,
        "client_us_per_event": 1e6 * spent / max(1, events),
    }


def problems(answers: Sequence[Answer]) -> list[str]:
    """What went wrong, each kind once."""
    bad = [answer for answer in answers if not answer.whole]
    return sorted({answer.failure or f"status {answer.status}: {answer.body[:200]!r}" for answer in bad})
