"""``/v1/models``, ``/tokenize`` and ``/detokenize``: the model and its tokens."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request

from outrider.server.desk import Desk, Lane
from outrider.server.wire.others import (
    DetokenizeAnswer,
    DetokenizeRequest,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizeRequest,
)
from outrider.server.wishes import message


def add_models(app: FastAPI, desk: Desk) -> None:
    """List the model, under each of its names."""
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
        desk.check_model(name)
        return cards[desk.names.index(name)]


def add_tokens(app: FastAPI, desk: Desk) -> None:
    """Encode and decode."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeAnswer:
        desk.check_model(body.model)
        with desk.admitted(1, request.state.tenant):
            tokens = await desk.run(partial(_tokens, desk, body), Lane.LONG)
        return TokenizeAnswer(tokens=tokens, count=len(tokens), max_model_len=desk.llm.engine.target.context_length)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizeAnswer:
        desk.check_model(body.model)
        with desk.admitted(1, request.state.tenant):
            prompt = await desk.run(partial(desk.tokenizer.decode, body.tokens, False), Lane.LONG)
        return DetokenizeAnswer(prompt=prompt)


def _tokens(desk: Desk, body: TokenizeRequest) -> list[int]:
    if body.messages is None:
        return desk.tokenizer.encode(body.prompt or "", body.add_special_tokens)
    return desk.llm.encode_chat(
        [message(one) for one in body.messages],
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
