"""Runs the server: the socket, the signals, and the end."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging.config
import math
import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Final

import uvicorn

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.server.app import make_app
from outrider.server.desk import Desk
from outrider.server.logs import log_config
from outrider.server.protocol import guarded, watch
from outrider.server.settings import ServerSettings

_BACKLOG: Final = 2048
_FILES: Final = 256
"""Open files beside the connections."""
_LAST_SECONDS: Final = 1
"""Time for the last answers to be written after open requests were given up."""


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
    keys = [*settings.api_keys, *([] if settings.admin_key is None else [settings.admin_key])]
    logging.config.dictConfig(log_config(as_json=settings.log_json, level=settings.log_level, keys=keys))
    gc.collect()
    allow_files(settings.max_connections + _FILES)
    gc.freeze()  # what the model is made of lives as long as the server, and need not be looked at again
    with llm, closing(Desk(llm, settings)) as desk:
        server = Server(desk, tell)
        server.run(sockets=[taken])
    if server.force_exit:
        _end_process()


def _end_process() -> None:
    """End now: at its usual end, a process waits for its threads, of which some may read prompts for many seconds."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def allow_files(count: int) -> None:
    """Let this process open more files, as far as its user may; each connection is one, and often 1024 are the default.

    Args:
        count: files that it should be able to open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server(uvicorn.Server):
    """Drains at the first signal, and ends at the second.

    Args:
        desk: admits requests.
        tell: told where the server answers, once it does.
    """

    def __init__(self, desk: Desk, tell: Callable[[str], None]) -> None:
        settings = desk.settings
        super().__init__(
            uvicorn.Config(
                make_app(desk),
                http=guarded(settings),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=max(5, int(settings.receive_seconds)),
                timeout_graceful_shutdown=_LAST_SECONDS,
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
        most = self._desk.settings.drain_seconds
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(most):
                await self._desk.drained()
        except TimeoutError:
            self._desk.give_up()
        left = began + most - asyncio.get_running_loop().time()
        self.config.timeout_graceful_shutdown = max(_LAST_SECONDS, math.ceil(left))  # for clients that read slowly
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections, ten times a second."""
        watch(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)
