"""Runs the server: the socket, the signals, and the end."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.server.app import make_app
from outrider.server.desk import Desk
from outrider.server.settings import ServerSettings

_MOST_HEADERS: Final = 128
_MOST_HEADER_BYTES: Final = 64 << 10
_BACKLOG: Final = 2048


def bound(settings: ServerSettings) -> socket.socket:
    """Take the server's address, before the model is loaded.

    Raises:
        ConfigError: the address is in use, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((settings.host, settings.port))
    except OSError as error:
        taken.close()
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{where} is in use by another program; choose another --port") from None
        told = f"cannot listen on {where}: {error.strerror or error}; choose another --host or --port"
        raise ConfigError(told) from None
    return taken


def serve(llm: LLM, settings: ServerSettings, taken: socket.socket, tell: Callable[[str], None]) -> None:
    """Serve until a signal ends it: SIGTERM or SIGINT lets open requests finish, a second one does not.

    Args:
        llm: the model; closed at the end.
        settings: limits and keys.
        taken: the socket from :func:`bound`.
        tell: told where the server answers, once it does.
    """
    gc.collect()
    gc.freeze()  # what the model is made of lives as long as the server, and need not be looked at again
    with llm:
        Server(Desk(llm, settings), tell).run(sockets=[taken])


class Server(uvicorn.Server):
    """Drains at the first signal, and ends at the second.

    Args:
        desk: admits requests.
        tell: told where the server answers, once it does.
    """

    def __init__(self, desk: Desk, tell: Callable[[str], None]) -> None:
        settings = desk.settings
        kind = type("Protocol", (_GuardedProtocol,), {"header_seconds": settings.receive_seconds})
        super().__init__(
            uvicorn.Config(
                make_app(desk),
                http=kind,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=settings.max_connections,
                timeout_keep_alive=max(5, int(settings.receive_seconds)),
                timeout_graceful_shutdown=1,
                backlog=_BACKLOG,
            )
        )
        self._desk, self._tell = desk, tell
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._desk.draining or self._loop is None:
            self.should_exit = self.force_exit = True
        else:
            self.drain()

    def drain(self) -> None:
        """Admit nothing more, and end once the open requests have; from any thread."""
        assert self._loop is not None
        self._desk.drain()
        self._loop.call_soon_threadsafe(self._start_ending)

    def _start_ending(self) -> None:
        self._draining = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._desk.settings.drain_seconds):
                await self._desk.drained()
        await asyncio.sleep(0)  # the last answers are written
        self.should_exit = True


class _GuardedProtocol(HttpToolsProtocol):
    """HTTP with bounds on headers: their number, their size, and the time until they are complete."""

    header_seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _seen = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._seen = 0
        self._have_headers()
        self._await_headers()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._have_headers()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None:  # a line that does not end has not been counted
            self._count(len(data))

    def _count(self, size: int) -> None:
        self._seen += size
        if self._seen > _MOST_HEADER_BYTES or len(self.headers or ()) > _MOST_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large")

    def _refuse(self, status: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.transport.close()

    def _await_headers(self) -> None:
        self._timer = self.loop.call_later(self.header_seconds, self._refuse, b"408 Request Timeout")

    def _have_headers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
