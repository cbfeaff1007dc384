"""HTTP connections with bounds: on headers, on connections, and on the time that a client takes to send and to read."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from outrider.server.failures import Refusal
from outrider.server.limits import CROWDED, SAFE
from outrider.server.settings import ServerSettings

_MOST_HEADERS: Final = 128
_MOST_HEADER_BYTES: Final = 64 << 10
_MOST_PIPELINED: Final = 8
"""Requests that a client may send before it has read the answer to the first."""
_HURRIED_SECONDS: Final = 1.0
"""Time for a request's headers while there are too many connections."""
_ALWAYS_ANSWERED: Final = (b"/health", b"/ready", b"/metrics")
_PHRASES: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
}


class GuardedProtocol(HttpToolsProtocol):
    """One connection.  The server asks all of them several times a second whether they are overdue."""

    settings = ServerSettings()
    _receive_by: float | None = None
    """When the message that is being received must be complete; None while none is."""
    _stuck_since: float | None = None
    """Since when the client has not read what it was sent."""
    _header_bytes = 0
    _beside_body = 0
    """Bytes of the message that brought no equal part of its body, such as an endless line."""
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        """Await a message."""
        super().connection_made(transport)
        self._await_message(_HURRIED_SECONDS if self._crowded else self.settings.receive_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that runs."""
        super().connection_lost(exc)
        running = self._running  # with pipelined requests it is not the latest one, which is all that uvicorn tells
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def overdue(self, now: float) -> None:
        """Close the connection if its client takes too long to send or to read.

        Args:
            now: the event loop's time.
        """
        if self.flow.write_paused or self.transport.is_closing():
            self._stuck_since = now if self._stuck_since is None else self._stuck_since
            if now - self._stuck_since > self.settings.send_seconds:
                self.transport.abort()  # closing would wait until everything is read
            return
        self._stuck_since = None
        if self._receive_by is not None and now > self._receive_by:
            self._refuse(408, f"the request did not arrive within {self.settings.receive_seconds:g} seconds")

    def data_received(self, data: bytes) -> None:
        """Read, within the bounds of a message."""
        self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > _MOST_HEADER_BYTES:
            self._refuse(431, f"headers may have {_MOST_HEADER_BYTES >> 10} KiB at most")
        elif self._receive_by is None and self._answered:  # an empty line, which begins no message
            self._await_message(self.settings.receive_seconds)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(400, "this is not valid HTTP")

    def on_message_begin(self) -> None:
        """A message begins."""
        self._header_bytes = self._beside_body = 0
        self._await_message(_HURRIED_SECONDS if self._crowded else self.settings.receive_seconds)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count it."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count it."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on."""
        if self.transport.is_closing():  # refused
            return
        self._await_message(self.settings.receive_seconds + 1.0)  # the route that reads a late body answers before
        self.scope["state"][CROWDED] = self._crowded and self.url not in _ALWAYS_ANSWERED
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_PIPELINED:
            self.transport.abort()
        elif self.pipeline:
            self.flow.resume_reading()  # or nobody would notice that the client has gone

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._beside_body -= 2 * len(body)  # chunks have lines of their own, which need not be longer than they
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The message is complete."""
        self._receive_by = None
        if not self.transport.is_closing():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _crowded(self) -> bool:
        return len(self.connections) > self.settings.max_connections

    @property
    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_message(self, seconds: float) -> None:
        self._receive_by = self.loop.time() + seconds

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MOST_HEADER_BYTES or len(self.headers) > _MOST_HEADERS:
            told = f"a request may have {_MOST_HEADERS} headers and {_MOST_HEADER_BYTES >> 10} KiB of them at most"
            self._refuse(431, told)

    def _refuse(self, status: int, message: str) -> None:
        """Answer, where no answer has begun, and close the connection."""
        if self.transport.is_closing():
            return
        if self._running is None or self._running.response_complete or not self._running.response_started:
            body = Refusal(status, message).body.model_dump_json().encode()
            head = (
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n"
            )
            safe = "".join(f"{name}: {value}\r\n" for name, value in SAFE.items())
            self.transport.write(f"{head}{safe}\r\n".encode() + body)
        self.transport.close()


def watch(connections: set[Any], now: float) -> None:
    """Close the connections whose clients take too long.

    Args:
        connections: uvicorn's.
        now: the event loop's time.
    """
    for connection in [one for one in connections if isinstance(one, GuardedProtocol)]:
        connection.overdue(now)


def guarded(settings: ServerSettings) -> type[asyncio.Protocol]:
    """The protocol of all connections of a server.

    Args:
        settings: its limits.
    """
    return type("Connection", (GuardedProtocol,), {"settings": settings})
