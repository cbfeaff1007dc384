"""Counts and logs every HTTP answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.logs import RequestLine, log_request
from outrider.server.metrics.requests import RequestMetrics
from outrider.server.tracing import RequestTracer

_GONE: Final = 499
"""Status of a request whose client left before an answer began."""
_QUIET: Final = frozenset({"/health", "/ready", "/metrics", "/stats"})
"""Routes that machines ask every second; they are counted and not logged, unless they fail."""


class AccessLog:
    """ASGI middleware around everything else: counts answers, and logs each with the figures of its outputs.

    It reads ``scope["state"]``: ``request_id``; ``requests``, the engine's requests, if there are any; and ``code``,
    the error's code.

    Args:
        app: what answers.
        metrics: where answers are counted.
        algorithm: tells the server's own drafting method.
        tracer: makes spans of the outputs; None makes none.
    """

    def __init__(
        self, app: ASGIApp, metrics: RequestMetrics, algorithm: Callable[[], str], tracer: RequestTracer | None = None
    ) -> None:
        self._app, self._metrics, self._algorithm, self._tracer = app, metrics, algorithm, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, then count and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), _GONE

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            status = 500 if status == _GONE else status
            raise
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        state: dict[str, Any] = scope.get("state", {})
        method, code = scope["method"] if scope["method"] in _METHODS else "other", state.get("code")
        outputs = list(state.get("requests", ()))
        route = scope["route"].path if "route" in scope else "unmatched"
        self._metrics.answered(method, route, status)
        if code is not None and not outputs:  # what ends later has an outcome of its own
            self._metrics.refused(code)
        if route in _QUIET and status < 400:
            return
        line = RequestLine(state.get("request_id", ""), method, route, status, round(seconds, 6), code)
        log_request(line.with_outputs(outputs, self._algorithm()))
        if self._tracer is not None:
            for request in outputs:
                if request.finish_reason is not None:
                    self._tracer.ended(request, line.request_id, Headers(scope=scope))


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that have a series of their own: a client may send any word."""
