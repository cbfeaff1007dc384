"""Latencies and sizes of requests, and answers by status.  Only the event loop writes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from prometheus_client import Histogram

from outrider.requests.stopping import FinishReason
from outrider.server.metrics.buckets import Buckets

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


class Moments(Protocol):
    """When a request reached each stage, by ``time.perf_counter``; 0 where it has not."""

    @property
    def queued(self) -> float:
        """When it was queued."""
        ...

    @property
    def admitted(self) -> float:
        """When it first got pages."""
        ...

    @property
    def first_token(self) -> float:
        """When its first token was committed."""
        ...

    @property
    def ended(self) -> float:
        """When its output ended."""
        ...


class TimedRequest(Protocol):
    """The part of :class:`outrider.requests.request.Request` that latencies and sizes come from."""

    @property
    def times(self) -> Moments:
        """When it reached each stage."""
        ...

    @property
    def inputs(self) -> Sized:
        """Prompt and output."""
        ...

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the output ended."""
        ...


class TimedProgress(Protocol):
    """The part of :class:`outrider.requests.turn.Progress` that latencies come from."""

    @property
    def request(self) -> TimedRequest:
        """The request."""
        ...

    @property
    def tokens(self) -> Sized:
        """What a round gave it."""
        ...


class RequestMetrics:
    """Histograms of requests and counts of answers.

    Args:
        model: the name that the model is served under.
        longest: most tokens that prompt and output may have together.
        clock: seconds.
    """

    def __init__(self, model: str, longest: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: WeakKeyDictionary[TimedRequest, float] = WeakKeyDictionary()
        """When the latest tokens of a streaming request came."""

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, [MODEL], registry=None, buckets=bounds)
            self._families.append(made)
            return made.labels(model)

        self._families: list[Histogram] = []
        sizes = tuple(_one_two_five(longest))
        self.queue = histogram(
            "vllm:request_queue_time_seconds",
            "Seconds that a request waited in the queue before it first got pages.",
            _REQUEST,
        )
        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "Seconds from queueing a request to its first token.", _FIRST_TOKEN
        )
        self.gaps = Buckets(_PER_TOKEN)
        """Seconds between two chunks of a request's tokens."""
        self.per_output_token = histogram(
            "vllm:request_time_per_output_token_seconds",
            "A request's seconds per token after the first one: what drafts shorten.",
            _PER_TOKEN,
        )
        self.total = histogram(
            "vllm:e2e_request_latency_seconds", "Seconds from queueing a request to its end.", _REQUEST
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

    def progressed(self, item: TimedProgress) -> None:
        """Note the tokens that a round gave a streaming request."""
        if not item.tokens:
            return
        request, now = item.request, self._clock()
        last = self._last.get(request)
        if last is None:
            self._first_token(request)
        else:
            self.gaps.observe(now - last)
        self._last[request] = now

    def ended(self, request: TimedRequest) -> None:
        """Note that a request has ended, streaming or not; only complete outputs count as whole requests."""
        times = request.times
        if request not in self._last and times.first_token:
            self._first_token(request)
        if times.admitted:
            self.queue.observe(times.admitted - times.queued)
        if request.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        tokens = len(request.inputs) - request.prompt_length
        self.total.observe(times.ended - times.queued)
        self.prompt_tokens.observe(request.prompt_length)
        self.output_tokens.observe(tokens)
        if tokens > 1:
            self.per_output_token.observe((times.ended - times.first_token) / (tokens - 1))

    def _first_token(self, request: TimedRequest) -> None:
        self.first_token.observe(request.times.first_token - request.times.queued)

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


def _one_two_five(most: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on, up to ``most``."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if step > most:
                return
            yield step
        power *= 10
