"""Answers conversations: whole, or as a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from outrider.completion import Choice
from outrider.server import logprobs
from outrider.server.exchange import FINISH, Exchange, Step
from outrider.server.parts import Content, PlainParser
from outrider.server.sse import DONE, ChunkEvents, event
from outrider.server.wire.chat import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChunkChoice,
    Delta,
)


async def answer(exchange: Exchange) -> ChatAnswer:
    """Answer a conversation.

    Raises:
        Refusal: it failed or took too long.
        OutriderError: the engine refuses it.
    """
    choices = await exchange.complete()
    return ChatAnswer(
        **exchange.head,
        choices=[_choice(exchange, choice) for choice in choices],
        usage=exchange.usage,
        timings=exchange.timings,
        prompt_logprobs=_of_prompt(exchange),
    )


def _choice(exchange: Exchange, choice: Choice) -> ChatChoice:
    parser = PlainParser()
    parts = [*parser.push(choice.text), *parser.finish()]
    return ChatChoice(
        index=choice.index,
        message=AnswerMessage(content="".join(part.text for part in parts)),
        logprobs=logprobs.of_chat(exchange.tokenizer, choice.logprobs),
        finish_reason=FINISH[choice.finish_reason],
        stop_reason=choice.stop_reason,
        seed=choice.seed,
        pieces=choice.pieces() if exchange.wishes.pieces else None,
    )


def _of_prompt(exchange: Exchange) -> list[dict[str, object] | None] | None:
    request = exchange.requests[0]
    if request.params.prompt_logprobs is None:
        return None
    return logprobs.of_prompt(exchange.tokenizer, request.prompt_logprobs)


async def chunks(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """Stream the answers to a conversation as events; one chunk for each round and answer."""
    async with exchange.called(ends_only=False) as ticket:
        writer = _ChatWriter(exchange, [PlainParser() for _ in ticket.call.requests])
        yield b""  # the engine has taken the requests
        yield writer.opening()
        async for step in exchange.steps(ticket):
            if (chunk := writer.chunk(step)) is not None:
                yield chunk
        if exchange.wishes.include_usage or exchange.wishes.timings:
            yield writer.closing()
    yield DONE


class _ChatWriter:
    def __init__(self, exchange: Exchange, parsers: Sequence[PlainParser]) -> None:
        self._exchange, self._parsers = exchange, parsers
        self._quick = ChunkEvents(ChatChunk(**exchange.head, choices=[]))

    def opening(self) -> bytes:
        """The role, before anything is known."""
        choices = [ChunkChoice(index=i, delta=Delta(role="assistant", content="")) for i in range(len(self._parsers))]
        return self._event(choices)

    def chunk(self, step: Step) -> bytes | None:
        """What a round added; None where there is nothing to tell yet."""
        parser = self._parsers[step.place]
        parts = [*parser.push(step.text), *(parser.finish() if step.ended else ())]
        said = "".join(part.text for part in parts if isinstance(part, Content))
        if not (said or step.logprobs or step.ended):
            return None
        if step.text_alone and not self._exchange.wishes.continuous_usage:
            choice = {"index": step.place, "delta": {"content": said}, "logprobs": None, "finish_reason": None}
            return self._quick.event(choice)
        reason = step.request.finish_reason if step.ended else None
        whole = ChunkChoice(
            index=step.place,
            delta=Delta(content=said) if said or not step.ended else Delta(),
            logprobs=logprobs.of_chat(self._exchange.tokenizer, step.logprobs),
            finish_reason=None if reason is None else FINISH[reason],
            stop_reason=step.request.stop_reason if step.ended else None,
            pieces=step.pieces,
        )
        return self._event([whole])

    def closing(self) -> bytes:
        """Usage and timings."""
        exchange = self._exchange
        return self._event(
            [], usage=exchange.usage if exchange.wishes.include_usage else None, timings=exchange.timings
        )

    def _event(self, choices: Sequence[ChunkChoice], **more: Any) -> bytes:
        exchange = self._exchange
        if exchange.wishes.continuous_usage:
            more.setdefault("usage", exchange.usage)
        chunk = ChatChunk(**exchange.head, choices=list(choices), **more)
        return event(chunk.model_dump_json())
