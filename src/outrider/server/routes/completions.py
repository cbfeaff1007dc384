"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from outrider.llm import LLM
from outrider.server import chat, completions
from outrider.server.desk import Desk, Lane
from outrider.server.exchange import Exchange, Intake
from outrider.server.failures import Refusal, refusal_of
from outrider.server.grammars import chat_has_form, has_form
from outrider.server.sse import DONE, EventStream, event, gone
from outrider.server.wire.chat import ChatAnswer, ChatRequest
from outrider.server.wire.completions import CompletionAnswer, CompletionRequest
from outrider.server.wire.shared import SamplingFields
from outrider.server.wishes import Caller, Wishes, chat_wishes, completion_wishes

_Answer = TypeVar("_Answer")
_QUICK: Final = 4096
"""Bytes of a request that the event loop reads itself; a thread takes longer to start than they take to encode."""


class _Kind(NamedTuple):
    """How requests of one kind are read and answered."""

    name: str
    read: Callable[[Any, LLM, Caller], Wishes]
    compiles: Callable[[Any], bool]
    """Whether a request may have a grammar to compile."""
    whole: Callable[[Exchange], Coroutine[Any, Any, bytes]]
    stream: Callable[[Exchange], AsyncGenerator[bytes, None]]


_CHAT: Final = _Kind("chatcmpl", chat_wishes, chat_has_form, chat.answer, chat.chunks)
_TEXT: Final = _Kind("cmpl", completion_wishes, has_form, completions.answer, completions.chunks)


def add_completions(app: FastAPI, desk: Desk) -> None:
    """Answer conversations and complete prompts."""

    @app.post("/v1/chat/completions", response_model=ChatAnswer)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await _answered(desk, request, body, _CHAT)

    @app.post("/v1/completions", response_model=CompletionAnswer)
    async def text_completions(body: CompletionRequest, request: Request) -> Response:
        return await _answered(desk, request, body, _TEXT)


async def _answered(desk: Desk, request: Request, body: SamplingFields, kind: _Kind) -> Response:
    desk.check_model(body.model)
    read = partial(kind.read, body, desk.llm, desk.caller(request.state.tenant, body.cache_salt))
    lane = Lane.GRAMMAR if kind.compiles(body) else _lane(request)
    exchange = Exchange(desk, Intake(body.outputs, read, lane, request.state.tenant), kind.name)
    request.state.requests = exchange
    if body.stream:
        return await _streamed(request, kind.stream(exchange))
    return Response(await _unless_gone(request, kind.whole(exchange)), media_type="application/json")


def _lane(request: Request) -> Lane:
    """What reading a request without a grammar takes; a client that does not tell its size may send many bytes."""
    size = int(request.headers.get("content-length", _QUICK + 1))
    return Lane.QUICK if size <= _QUICK else Lane.LONG


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Wait for an answer; if the client leaves first, the work is cancelled."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refusal(499, "the client left", code="client_left")
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _streamed(request: Request, events: AsyncGenerator[bytes, None]) -> Response:
    """Start a stream; what is refused before it has begun is answered with a status."""
    guarded = _guarded(request, events)
    await anext(guarded)
    return EventStream(guarded)


async def _guarded(request: Request, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events, and an error as the last one where the source fails after the first."""
    async with aclosing(events):
        yield await anext(events)
        try:
            async for one in events:
                yield one
        except Exception as error:  # noqa: BLE001 - the client is told
            refusal = refusal_of(error)
            request.state.code = refusal.code or str(refusal.status)  # for the log: the status was sent long before
            yield event(refusal.body.model_dump_json())
            yield DONE
