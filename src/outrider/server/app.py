"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from outrider.server import chat, completions, document, failures
from outrider.server.access import AccessLog
from outrider.server.board import Board
from outrider.server.bodies import BodyRoute
from outrider.server.desk import Desk
from outrider.server.exchange import Exchange
from outrider.server.failures import Refusal, draining, refusal_of
from outrider.server.limits import Gate
from outrider.server.routes.admin import add_admin
from outrider.server.routes.board import add_board
from outrider.server.routes.page import add_page
from outrider.server.sse import DONE, EventStream, event, gone
from outrider.server.tracing import make_tracer
from outrider.server.wire.chat import ChatAnswer, ChatRequest
from outrider.server.wire.completions import CompletionAnswer, CompletionRequest
from outrider.server.wire.others import (
    DetokenizeAnswer,
    DetokenizeRequest,
    ModelCard,
    ModelList,
    ServerStatus,
    TokenizeAnswer,
    TokenizeRequest,
    Version,
)
from outrider.server.wishes import Wishes, chat_wishes, completion_wishes, message

_Answer = TypeVar("_Answer")
_NOT_SERVED: Final = {
    "/v1/embeddings": "embeddings",
    "/v1/images/generations": "images",
    "/v1/images/edits": "images",
    "/v1/images/variations": "images",
    "/v1/audio/speech": "audio",
    "/v1/audio/transcriptions": "audio",
    "/v1/audio/translations": "audio",
    "/v1/moderations": "moderation",
    "/v1/responses": "the responses interface; use /v1/chat/completions",
    "/v1/fine_tuning/jobs": "fine-tuning",
    "/v1/files": "files",
    "/v1/batches": "batches",
}
"""Routes of OpenAI's that are refused, and what they would serve."""


def make_app(desk: Desk) -> FastAPI:
    """The server's application.

    Args:
        desk: admits requests.
    """
    app = FastAPI(title="Outrider", version=version("outrider"), docs_url=None, redoc_url=None)
    app.router.route_class = BodyRoute
    failures.install(app)
    _add_completions(app, desk)
    _add_models(app, desk)
    _add_tokens(app, desk)
    _add_health(app, desk)
    board = Board(desk)
    traces = desk.settings.traces_endpoint
    tracer = None if traces is None else make_tracer(traces, desk.names[0])
    add_board(app, board)
    add_page(app)
    add_admin(app, desk.llm)
    for path, what in _NOT_SERVED.items():
        app.add_api_route(path, partial(_refuse, what), methods=["POST", "GET"], include_in_schema=False)
    document.install(app, desk.settings)
    app.add_middleware(Gate, settings=desk.settings)
    if desk.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(desk.settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
        )
    app.add_middleware(AccessLog, metrics=board.requests, algorithm=lambda: board.facts.algorithm, tracer=tracer)
    return app


async def _refuse(what: str) -> Response:
    raise Refusal(404, f"this server does not offer {what}", code="not_offered")


def _add_completions(app: FastAPI, desk: Desk) -> None:
    @app.post("/v1/chat/completions", response_model=ChatAnswer)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        _check_model(desk, body.model)
        read = partial(chat_wishes, body, desk.llm, desk.caller(request.state.tenant, body.cache_salt))
        exchange = Exchange(desk, await desk.read(_size(request), read), "chatcmpl")
        request.state.requests = exchange
        if exchange.wishes.streams:
            return await _streamed(desk, chat.chunks(exchange))
        return _json(await _unless_gone(request, chat.answer(exchange)))

    @app.post("/v1/completions", response_model=CompletionAnswer)
    async def text_completions(body: CompletionRequest, request: Request) -> Response:
        _check_model(desk, body.model)
        read = partial(completion_wishes, body, desk.llm, desk.caller(request.state.tenant, body.cache_salt))
        wishes: Wishes = await desk.read(_size(request), read)
        exchange = Exchange(desk, wishes, "cmpl")
        request.state.requests = exchange
        echoes = [_echo(desk, ids) if body.echo else "" for ids, _ in wishes.specs]
        if wishes.streams:
            return await _streamed(desk, completions.chunks(exchange, echoes))
        return _json(await _unless_gone(request, completions.answer(exchange, echoes)))


def _check_model(desk: Desk, name: str | None) -> None:
    if name is not None and name not in desk.names:
        told = f"there is no model {name[:100]!r} here; there is: {', '.join(desk.names)}"
        raise Refusal(404, told, "model", "model_not_found")


def _size(request: Request) -> int:
    """Bytes of a request's body; a client that does not tell may send many."""
    return int(request.headers.get("content-length", 10**6))


def _echo(desk: Desk, ids: Any) -> str:
    return desk.tokenizer.decode(ids)


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


async def _streamed(desk: Desk, events: AsyncGenerator[bytes, None]) -> Response:
    """Start a stream; what is refused before it has begun is answered with a status."""
    guarded = _guarded(events)
    await anext(guarded)
    return EventStream(guarded, desk.settings.send_seconds)


async def _guarded(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events, and an error as the last one where the source fails after the first."""
    async with aclosing(events):
        yield await anext(events)
        try:
            async for one in events:
                yield one
        except Exception as error:  # noqa: BLE001 - the client is told
            yield event(refusal_of(error).body.model_dump_json())
            yield DONE


def _add_models(app: FastAPI, desk: Desk) -> None:
    target = desk.llm.engine.target
    cards = [
        ModelCard(
            id=name,
            created=desk.since,
            max_model_len=target.context_length,
            backend=target.backend,
            algorithm=desk.algorithm,
            algorithms=list(desk.algorithms),
        )
        for name in desk.names
    ]

    @app.get("/v1/models")
    async def models() -> ModelList:
        return ModelList(data=cards)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> ModelCard:
        _check_model(desk, name)
        return cards[desk.names.index(name)]


def _add_tokens(app: FastAPI, desk: Desk) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeAnswer:
        _check_model(desk, body.model)
        tokens = await desk.read(10**6, partial(_tokens, desk, body))
        return TokenizeAnswer(tokens=tokens, count=len(tokens), max_model_len=desk.llm.engine.target.context_length)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeAnswer:
        _check_model(desk, body.model)
        tokenizer = desk.tokenizer
        return DetokenizeAnswer(prompt=await asyncio.to_thread(tokenizer.decode, body.tokens, False))


def _tokens(desk: Desk, body: TokenizeRequest) -> list[int]:
    if body.messages is None:
        return desk.tokenizer.encode(body.prompt or "", body.add_special_tokens)
    return desk.llm.encode_chat(
        [message(one) for one in body.messages],
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )


def _add_health(app: FastAPI, desk: Desk) -> None:
    @app.get("/health")
    async def health() -> ServerStatus:
        return ServerStatus(status="ok")

    @app.get("/ready")
    async def ready() -> ServerStatus:
        if desk.draining:
            raise draining()
        return ServerStatus(status="ok")

    @app.get("/version")
    async def version_of() -> Version:
        return Version(version=version("outrider"))
