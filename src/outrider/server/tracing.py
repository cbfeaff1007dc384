"""Spans of requests for OpenTelemetry, if it is installed and an endpoint is given: queue, prefill and decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from outrider.errors import ConfigError
from outrider.server.metrics.requests import TimedRequest

_PACKAGES: Final = "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"


class Span(Protocol):
    """The part of OpenTelemetry's span that is used here."""

    def end(self, end_time: int | None = None) -> None:
        """End the span, at a time in nanoseconds since 1970."""
        ...


class Spans(Protocol):
    """The part of OpenTelemetry's tracer that is used here."""

    def start_span(
        self,
        name: str,
        context: Any = None,
        *,
        attributes: Mapping[str, Any] | None = None,
        start_time: int | None = None,
    ) -> Span:
        """Start a span, at a time in nanoseconds since 1970."""
        ...


class RequestTracer:
    """Makes the spans of requests that have ended.  They hold numbers, and no text of a user.

    Args:
        spans: OpenTelemetry's tracer.
        parent: reads the caller's context from the headers of a request.
        inside: makes the context of a span's children.
        model: the name that the model is served under.
    """

    def __init__(
        self,
        spans: Spans,
        parent: Callable[[Mapping[str, str]], Any],
        inside: Callable[[Span], Any],
        model: str,
    ) -> None:
        self._spans, self._parent, self._inside, self._model = spans, parent, inside, model

    def ended(self, request: TimedRequest, request_id: str, headers: Mapping[str, str]) -> None:
        """Make the spans of one output.

        Args:
            request: has ended.
            request_id: of the HTTP request.
            headers: of the HTTP request; ``traceparent`` names the caller's span.
        """
        times = request.times
        reason = request.finish_reason
        whole = self._spans.start_span(
            "llm_request",
            self._parent(headers),
            start_time=_since_1970(times.queued),
            attributes={
                "gen_ai.request.id": request_id,
                "gen_ai.response.model": self._model,
                "gen_ai.usage.input_tokens": request.prompt_length,
                "gen_ai.usage.output_tokens": len(request.inputs) - request.prompt_length,
                "gen_ai.response.finish_reasons": [reason.value if reason else ""],
            },
        )
        inside = self._inside(whole)
        for name, begin, end in _stages((times.queued, times.admitted, times.first_token, times.ended)):
            self._spans.start_span(name, inside, start_time=_since_1970(begin)).end(_since_1970(end))
        whole.end(_since_1970(times.ended))


def make_tracer(endpoint: str, model: str) -> RequestTracer:
    """Make a tracer that sends spans to a collector, in batches and from a thread of its own.

    Args:
        endpoint: of OTLP over HTTP, such as ``http://localhost:4318/v1/traces``.
        model: the name that the model is served under.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        trace, sdk = import_module("opentelemetry.trace"), import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
        headers = import_module("opentelemetry.trace.propagation.tracecontext")
    except ImportError:
        raise ConfigError(f"traces need OpenTelemetry; install {_PACKAGES}, or leave the endpoint out") from None
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "outrider"}))
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint)))
    extract = headers.TraceContextTextMapPropagator().extract
    return RequestTracer(provider.get_tracer("outrider"), extract, trace.set_span_in_context, model)


def _stages(times: Sequence[float]) -> list[tuple[str, float, float]]:
    """The stages that a request reached; the last one that it reached goes on to the end."""
    *reached, ended = [moment for moment in times if moment]
    return list(zip(("queue", "prefill", "decode"), reached, (*reached[1:], ended), strict=False))


def _since_1970(moment: float) -> int:
    """A moment of ``time.perf_counter`` in nanoseconds since 1970."""
    return time.time_ns() - int((time.perf_counter() - moment) * 1e9)
