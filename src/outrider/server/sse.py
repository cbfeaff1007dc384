"""Server-sent events: a response that ends its source as soon as the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
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
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event(data: str) -> bytes:
    """One event."""
    return b"data: " + data.encode() + b"\n\n"


class ChunkEvents:
    """Writes a stream's chunks; what they have in common is written once, for there is one for each round and answer.

    Args:
        empty: a chunk without choices.
        left_out: fields that this stream's chunks do not have.
    """

    def __init__(self, empty: BaseModel, left_out: Set[str] = frozenset()) -> None:
        self._empty, self._left_out = empty, set(left_out)
        before, choices, self._after = self.whole([]).partition(_CHOICES)
        self._before = before + choices
        assert self._after.startswith(b"]"), "a chunk has a list of choices"

    def quick(self, choice: Mapping[str, Any]) -> bytes:
        """A chunk with nothing but one choice, given as JSON values."""
        return self._before + to_json(choice) + self._after

    def whole(self, choices: Sequence[BaseModel], **more: Any) -> bytes:
        """A chunk with these choices and other fields."""
        chunk = self._empty.model_copy(update={"choices": choices, **more})
        return event(chunk.model_dump_json(exclude=self._left_out))


class EventStream(Response):
    """Streams events.

    While there is none, comments keep proxies from closing the connection.  A client that does not read is cut off by
    its connection (:mod:`outrider.server.protocol`), so that sending an event needs no clock of its own.

    Args:
        events: whole events; closed when the client is gone.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(None, headers=_HEADERS)
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
