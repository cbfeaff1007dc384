"""A lean client of OpenAI-compatible servers: it keeps what arrives and when, and parses nothing before the end.

The client shares the machine with the server that it measures, so it must cost little.  What arrives goes through a C
parser, gets a time, and waits; JSON is read when the figures are made.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httptools
import uvloop

Result = TypeVar("Result")

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
TIMEOUT_S: Final = 600.0
"""A request that takes longer is lost."""
_DONE: Final = b"[DONE]"
_EVENTS: Final = b"text/event-stream"


@dataclass(frozen=True)
class Request:
    """What to send, and when to hang up."""

    path: str
    body: Mapping[str, Any] | bytes | None
    """A JSON body, or bytes as they are; None is a GET."""
    events: int | None = None
    """Hang up after this many events of the stream; 0 hangs up as soon as the request is sent."""
    seconds: float | None = None
    """Hang up after this time."""

    def bytes(self, host: str, extra: Mapping[str, Any]) -> bytes:
        """The request as it goes over the wire.

        Args:
            host: the server's host and port.
            extra: fields that every JSON body gets.
        """
        if self.body is None:
            return f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        body = self.body if isinstance(self.body, bytes) else json.dumps({**extra, **self.body}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def completion(prompt: Sequence[int] | str, *, stream: bool = True, **options: Any) -> Request:
    """A request for ``/v1/completions``; options are fields of its body."""
    return Request(COMPLETIONS, {"prompt": prompt, **_streamed(stream), **options})


def chat(messages: Sequence[Mapping[str, Any]], *, stream: bool = True, **options: Any) -> Request:
    """A request for ``/v1/chat/completions``; options are fields of its body."""
    return Request(CHAT, {"messages": list(messages), **_streamed(stream), **options})


def _streamed(stream: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}


@dataclass(frozen=True)
class Answer:
    """What came back, with times of ``time.perf_counter``."""

    sent: float
    ended: float
    status: int
    """HTTP status; 0 if none arrived."""
    events: tuple[tuple[float, bytes], ...]
    """The events of a stream, each with its arrival."""
    body: bytes
    """The body of an answer that is no stream."""
    failure: str | None = None
    """Why the exchange broke off; None if it is whole."""
    hung_up: bool = False
    """Whether the client ended it."""

    @property
    def whole(self) -> bool:
        """Whether a good answer arrived to its end."""
        ended = not self.events or self.events[-1][1] == _DONE
        return self.status == 200 and self.failure is None and not self.hung_up and ended and self.error is None

    @cached_property
    def chunks(self) -> tuple[tuple[float, dict[str, Any]], ...]:
        """The JSON of every event with its arrival; one chunk for an answer that is no stream."""
        if self.events:
            return tuple((at, json.loads(data)) for at, data in self.events if data != _DONE)
        return ((self.ended, json.loads(self.body)),) if self.body else ()

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object of the answer or of its stream."""
        return next((chunk["error"] for _, chunk in self.chunks if "error" in chunk), None)

    @cached_property
    def pieces(self) -> tuple[tuple[float, str], ...]:
        """The texts of the first choice, each with its arrival; empty ones are left out."""
        found = ((at, _text(choice)) for at, choice in self._choices(0))
        return tuple((at, text) for at, text in found if text)

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return "".join(text for _, text in self.pieces)

    def _choices(self, index: int) -> Iterator[tuple[float, dict[str, Any]]]:
        for at, chunk in self.chunks:
            for choice in chunk.get("choices", ()):
                if choice.get("index", 0) == index:
                    yield at, choice

    @cached_property
    def usage(self) -> dict[str, Any]:
        """The server's own counts; empty if it sent none."""
        return next((chunk["usage"] for _, chunk in reversed(self.chunks) if chunk.get("usage")), {})

    @property
    def tokens(self) -> int:
        """Output tokens: the server's count, or the number of texts."""
        return int(self.usage.get("completion_tokens", len(self.pieces)))

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def first_token_s(self) -> float | None:
        """Time to the first text; None without text."""
        return self.pieces[0][0] - self.sent if self.pieces else None

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """The arrival of every text but the first, and the time since the one before."""
        times = [at for at, _ in self.pieces]
        return tuple((late, late - early) for early, late in pairwise(times))


def _text(choice: Mapping[str, Any]) -> str:
    part = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or part.get("content") or part.get("reasoning_content") or ""


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time; the parser calls the ``on_`` methods."""

    def __init__(self) -> None:
        self._transport: Any = None  # uvloop's transports have asyncio's methods, but not its types
        self._ended: asyncio.Future[None] | None = None
        self.open, self.used = True, False

    def begin(self, request: Request, data: bytes) -> asyncio.Future[None]:
        """Send a request; the future is done when the exchange has ended."""
        self._parser = httptools.HttpResponseParser(self)
        self._limit = request.events
        self.events: list[tuple[float, bytes]] = []
        self.body, self.status, self.failure, self.hung_up, self._streams = b"", 0, "", False, False
        self._ended = ended = asyncio.get_running_loop().create_future()
        self.sent = time.perf_counter()
        self._transport.write(data)
        if request.events == 0:
            self.hang_up()
        return ended

    def hang_up(self, failure: str = "") -> None:
        """End the exchange and the connection, as the client wishes or because of a failure."""
        self.hung_up = not failure
        self.close(failure)

    def close(self, failure: str = "") -> None:
        """End the connection, and the exchange if there is one."""
        self.open = False
        if self._transport is not None:
            self._transport.close()
        self._end(failure)

    def _end(self, failure: str = "") -> None:
        if self._ended is not None and not self._ended.done():
            self.ended, self.used, self.failure = time.perf_counter(), True, failure
            self._ended.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._end(f"the connection was lost: {exc or 'closed by the server'}")

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser has read a header."""
        if name.lower() == b"content-type":
            self._streams = value.startswith(_EVENTS)

    def on_headers_complete(self) -> None:
        """The parser has read all headers."""
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """The parser has read a part of the body."""
        self.body += data
        if not self._streams:
            return
        if b"\r" in self.body:
            self.body = self.body.replace(b"\r\n", b"\n")
        *events, self.body = self.body.split(b"\n\n")
        self.events += [(self._now, event[5:].strip()) for event in events if event.startswith(b"data:")]
        if self._limit is not None and len(self.events) >= self._limit:
            self.hang_up()

    def on_message_complete(self) -> None:
        """The parser has read the whole answer."""
        self.open = self.open and self._parser.should_keep_alive()
        self._end()


class Client:
    """Sends requests to one server; idle connections are used again.

    Args:
        base: the server's address, such as ``http://127.0.0.1:8000``.
        extra: fields that every JSON body gets, such as an engine's switches.
    """

    def __init__(self, base: str, extra: Mapping[str, Any] | None = None) -> None:
        address = urlsplit(base)
        self._host, self._port, self._extra = address.hostname, address.port or 80, dict(extra or {})
        self._idle: list[_Connection] = []

    async def send(self, request: Request) -> Answer:
        """Send a request and wait for the end of its answer."""
        data = request.bytes(f"{self._host}:{self._port}", self._extra)
        try:
            connection = await self._connection()
        except OSError as error:
            now = time.perf_counter()
            return Answer(now, now, 0, (), b"", f"no connection: {error}")
        used, ended = connection.used, connection.begin(request, data)
        await asyncio.wait([ended], timeout=TIMEOUT_S if request.seconds is None else request.seconds)
        if not ended.done():
            connection.hang_up("" if request.seconds is not None else f"no answer in {TIMEOUT_S:.0f} seconds")
        elif connection.open:
            self._idle.append(connection)
        elif used and connection.failure and not connection.status:
            return await self.send(request)  # the server had closed the idle connection
        return Answer(
            connection.sent,
            connection.ended,
            connection.status,
            tuple(connection.events),
            connection.body,
            connection.failure or None,
            connection.hung_up,
        )

    async def get(self, path: str) -> Any:
        """The JSON of a GET, or None if there is none."""
        answer = await self.send(Request(path, None))
        try:
            return json.loads(answer.body) if answer.status == 200 else None
        except ValueError:
            return None

    async def _connection(self) -> _Connection:
        while self._idle:
            if (connection := self._idle.pop()).open:
                return connection
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._host, self._port)
        return made

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()


async def closed_loop(client: Client, requests: Sequence[Request], clients: int) -> list[Answer]:
    """Send requests from several clients, each of which sends the next one as soon as its last one has ended.

    Returns:
        The answers in the order of the requests.
    """
    answers: dict[int, Answer] = {}
    queue = iter(enumerate(requests))

    async def work() -> None:
        for number, request in queue:
            answers[number] = await client.send(request)

    await asyncio.gather(*(work() for _ in range(clients)))
    return [answers[number] for number in range(len(requests))]


async def open_loop(client: Client, requests: Sequence[Request], times: Sequence[float]) -> list[Answer]:
    """Send every request at its time, whether the others have ended or not.

    Args:
        client: where to send.
        requests: what to send.
        times: seconds from now, one per request.

    Returns:
        The answers in the order of the requests.
    """
    begun = time.perf_counter()

    async def later(request: Request, at: float) -> Answer:
        await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
        return await client.send(request)

    return list(await asyncio.gather(*map(later, requests, times)))


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a fast event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
