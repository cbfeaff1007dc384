"""Server-sent events: a response that ends its source as soon as the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE: Final = b"data: [DONE]\n\n"
_PING: Final = b": still here\n\n"
_PING_SECONDS: Final = 15.0
_CHOICES: Final = b'"choices":['
_NO_CHOICES: Final = _CHOICES + b"]}"
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event(data: str) -> bytes:
    """One event."""
    return b"data: " + data.encode() + b"\n\n"


class ChunkEvents:
    """Writes a stream's chunks; what they have in common is written once, for there is one for each round and answer.

    Args:
        empty: a chunk without choices.
    """

    def __init__(self, empty: BaseModel) -> None:
        self._head = b"data: " + empty.model_dump_json().encode().removesuffix(_NO_CHOICES) + _CHOICES

    def event(self, choice: Mapping[str, Any]) -> bytes:
        """A chunk with one choice, given as JSON values."""
        return self._head + to_json(choice) + b"]}\n\n"


class EventStream(Response):
    """Streams events.

    While there is none, comments keep proxies from closing the connection.  A client that does not read is cut off by
    its connection (:mod:`outrider.server.protocol`), so that sending an event needs no clock of its own.

    Args:
        events: whole events; closed when the client is gone.
        headers: more headers.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(None, headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events, self._idle = events, True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        writing = asyncio.ensure_future(self._write(send))
        others = [asyncio.ensure_future(gone(receive)), asyncio.ensure_future(self._ping(send))]
        try:
            await asyncio.wait({writing, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, *others):
                task.cancel()
            await asyncio.gather(writing, *others, return_exceptions=True)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error

    async def _write(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for body in events:
                self._idle = False
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        while True:
            self._idle = True
            await asyncio.sleep(_PING_SECONDS)
            if self._idle:
                await send({"type": "http.response.body", "body": _PING, "more_body": True})


async def gone(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
