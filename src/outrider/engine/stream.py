"""Streams of a prompt's outputs, for threads and for event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from outrider.completion import Chunk
from outrider.engine.call import Call
from outrider.engine.driver import Driver
from outrider.requests.turn import Progress


class Stream(Iterator[Chunk]):
    """An iterator over the chunks of a prompt's outputs; it may be read from any thread.

    Decoding continues between chunks, and unread chunks are kept.  Closing it early, or leaving a ``with`` block,
    cancels the request and frees its pages.
    """

    def __init__(self, driver: Driver, call: Call) -> None:
        self._driver, self._call = driver, call

    def __next__(self) -> Chunk:
        item = self._driver.wait(self._call)
        if item is None:
            raise StopIteration
        return _chunk(self._call, item)

    def close(self) -> None:
        """Cancel the request and end the iterator, in whichever thread it is read."""
        self._driver.cancel(self._call)

    def __repr__(self) -> str:
        """The numbers of open outputs and of unread chunks."""
        return _repr(self, self._call)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream(AsyncIterator[Chunk]):
    """An asynchronous iterator over the chunks of a prompt's outputs.

    Closing it early, leaving an ``async with`` block, or dropping it cancels the request and frees its pages.
    """

    def __init__(self, driver: Driver, call: Call) -> None:
        self._driver, self._call = driver, call

    async def __anext__(self) -> Chunk:
        item = await self._driver.awaited(self._call)
        if item is None:
            raise StopAsyncIteration
        return _chunk(self._call, item)

    async def aclose(self) -> None:
        """Cancel the request and end the iterator."""
        self._driver.cancel(self._call)

    def __repr__(self) -> str:
        """The numbers of open outputs and of unread chunks."""
        return _repr(self, self._call)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._driver.cancel(self._call)


def _chunk(call: Call, item: Progress) -> Chunk:
    whole = call.choice(item.request) if item.finished else None
    return Chunk(item.request.choice, item.text, item.tokens, item.drafted, whole)


def _repr(stream: object, call: Call) -> str:
    inside = "closed" if call.dropped else f"open={call.open}, unread={call.unread}"
    return f"{type(stream).__name__}({inside})"
