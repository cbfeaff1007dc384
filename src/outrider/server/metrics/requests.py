"""Latencies and sizes of requests, and answers by status.  Only the event loop writes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Histogram

from outrider.requests.stopping import FinishReason

_FIRST_TOKEN: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_PER_TOKEN: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
"""Bounds of seconds; all are those of vLLM."""
MODEL: Final = "model_name"
"""Label of every metric: the name that the model is served under."""


class RequestMetrics:
    """Histograms of requests and counts of answers.

    Args:
        model: the name that the model is served under.
        longest: most tokens that prompt and output may have together.
        clock: seconds, the same as that of :class:`outrider.server.metrics.rounds.RoundTotals`.
    """

    def __init__(self, model: str, longest: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, [MODEL], registry=None, buckets=bounds)
            self._families.append(made)
            return made.labels(model)

        self._families: list[Histogram] = []
        sizes = tuple(_one_two_five(longest))
        self.queue = histogram(
            "vllm:request_queue_time_seconds",
            "Seconds from a request's arrival to the start of its first round.",
            _REQUEST,
        )
        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "Seconds from a request's arrival to its first token.", _FIRST_TOKEN
        )
        self.inter_token = histogram(
            "vllm:inter_token_latency_seconds",
            "Seconds between two chunks of a request's tokens; a chunk holds all tokens of a round and counts once.",
            _PER_TOKEN,
        )
        self.time_per_output_token = histogram(
            "vllm:time_per_output_token_seconds",
            "The same as vllm:inter_token_latency_seconds, under the older name.",
            _PER_TOKEN,
        )
        self.per_output_token = histogram(
            "vllm:request_time_per_output_token_seconds",
            "A request's seconds per token after the first one: what drafts shorten.",
            _PER_TOKEN,
        )
        self.total = histogram(
            "vllm:e2e_request_latency_seconds", "Seconds from a request's arrival to its end.", _REQUEST
        )
        self.prompt_tokens = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", sizes)
        self.output_tokens = histogram("vllm:request_generation_tokens", "Output tokens of a request.", sizes)
        self.answers: Counter[tuple[str, str, int]] = Counter()
        """Answers by method, route and status."""
        self.refusals: Counter[str] = Counter()
        """Refused requests by the error's code."""

    @property
    def histograms(self) -> Iterator[Histogram]:
        """All histograms."""
        return iter(self._families)

    def begin(self, arrived: float | None = None) -> RequestTimes:
        """Start the clock of one request.

        Args:
            arrived: when it arrived, by ``clock``; None is now.
        """
        return RequestTimes(self, self.clock() if arrived is None else arrived)

    def answered(self, method: str, route: str, status: int) -> None:
        """Count an HTTP answer.

        Args:
            method: of HTTP.
            route: the route's pattern, such as ``/v1/models/{model}``, never the path that a client sent: every new
                value is one more series.
            status: of HTTP.
        """
        self.answers[method, route, status] += 1

    def refused(self, code: str) -> None:
        """Count a request that was refused before it reached the engine, by the error's code."""
        self.refusals[code] += 1


class RequestTimes:
    """When things happened to one request; each of the ``n`` outputs has its own.

    Args:
        metrics: what to observe in.
        arrived: when the request arrived, by the clock of ``metrics``.
    """

    def __init__(self, metrics: RequestMetrics, arrived: float) -> None:
        self._metrics, self.arrived = metrics, arrived
        self.started: float | None = None
        """When the first round began; None if none has."""
        self.first: float | None = None
        """When the first token came."""
        self.last: float | None = None
        """When the latest token came."""
        self.ended: float | None = None
        """When the output ended."""
        self.tokens = 0
        """Output tokens so far."""

    def chunk(self, tokens: int) -> None:
        """Note that a round's tokens have come; 0 tokens are no chunk."""
        if not tokens:
            return
        metrics, now = self._metrics, self._metrics.clock()
        if self.last is None:
            self.first = now
            metrics.first_token.observe(now - self.arrived)
        else:
            metrics.inter_token.observe(now - self.last)
            metrics.time_per_output_token.observe(now - self.last)
        self.last = now
        self.tokens += tokens

    def end(self, reason: FinishReason, prompt_tokens: int, started: float | None) -> None:
        """Note that the output has ended.  Only complete outputs count in the histograms of whole requests.

        Args:
            reason: why.
            prompt_tokens: tokens of the prompt.
            started: when its first round began, as :meth:`RoundTotals.started` tells; None if none has.
        """
        metrics, self.ended, self.started = self._metrics, self._metrics.clock(), started
        if started is not None:
            metrics.queue.observe(max(0.0, started - self.arrived))
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        metrics.total.observe(self.ended - self.arrived)
        metrics.prompt_tokens.observe(prompt_tokens)
        metrics.output_tokens.observe(self.tokens)
        if self.first is not None and self.last is not None and self.tokens > 1:
            metrics.per_output_token.observe((self.last - self.first) / (self.tokens - 1))

    @property
    def queue_seconds(self) -> float | None:
        """Seconds in the queue; None before the end, or if no round has begun."""
        return None if self.started is None else max(0.0, self.started - self.arrived)

    @property
    def first_token_seconds(self) -> float | None:
        """Seconds to the first token; None if there is none."""
        return None if self.first is None else self.first - self.arrived

    @property
    def total_seconds(self) -> float:
        """Seconds to the end, or until now."""
        return (self._metrics.clock() if self.ended is None else self.ended) - self.arrived


def _one_two_five(most: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if step > most:
                return
            yield step
        power *= 10
