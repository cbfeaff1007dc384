"""``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from outrider.server import chat, completions
from outrider.server.desk import Desk
from outrider.server.exchange import Exchange
from outrider.server.failures import Refusal, refusal_of
from outrider.server.grammars import has_form
from outrider.server.sse import DONE, EventStream, event, gone
from outrider.server.wire.chat import ChatAnswer, ChatRequest
from outrider.server.wire.completions import CompletionAnswer, CompletionRequest
from outrider.server.wishes import Wishes, chat_wishes, completion_wishes

_Answer = TypeVar("_Answer")
_LARGE: Final = 10**6
"""Bytes of a request that takes long to read, such as one with a grammar to compile."""


def add_completions(app: FastAPI, desk: Desk) -> None:
    """Answer conversations and complete prompts."""

    @app.post("/v1/chat/completions", response_model=ChatAnswer)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        desk.check_model(body.model)
        desk.check_room(body.n or 1, request.state.tenant)
        read = partial(chat_wishes, body, desk.llm, desk.caller(request.state.tenant, body.cache_salt))
        size = _LARGE if body.tools or has_form(body) else _size(request)
        exchange = Exchange(desk, await desk.read(size, read), "chatcmpl")
        request.state.requests = exchange
        if exchange.wishes.streams:
            return await _streamed(request, chat.chunks(exchange))
        return _json(await _unless_gone(request, chat.answer(exchange)))

    @app.post("/v1/completions", response_model=CompletionAnswer)
    async def text_completions(body: CompletionRequest, request: Request) -> Response:
        desk.check_model(body.model)
        desk.check_room(body.n or 1, request.state.tenant)
        read = partial(completion_wishes, body, desk.llm, desk.caller(request.state.tenant, body.cache_salt))
        wishes: Wishes = await desk.read(_LARGE if has_form(body) else _size(request), read)
        exchange = Exchange(desk, wishes, "cmpl")
        request.state.requests = exchange
        echoes = [desk.tokenizer.decode(ids) if body.echo else "" for ids, _ in wishes.specs]
        if wishes.streams:
            return await _streamed(request, completions.chunks(exchange, echoes))
        return _json(await _unless_gone(request, completions.answer(exchange, echoes)))


def _size(request: Request) -> int:
    """Bytes of a request's body; a client that does not tell may send many."""
    return int(request.headers.get("content-length", _LARGE))


def _json(answer: ChatAnswer | CompletionAnswer) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


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
