"""Answers conversations: whole, or as a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Final

from outrider.completion import Choice
from outrider.requests.stopping import FinishReason
from outrider.server import logprobs
from outrider.server.answer_text import AnswerText, delta, whole
from outrider.server.exchange import FINISH, Exchange, Step
from outrider.server.sse import DONE
from outrider.server.tools.parts import Content
from outrider.server.wire.chat import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChunkChoice,
    Delta,
)
from outrider.server.wire.shared import Usage

_CALLED: Final = "tool_calls"


async def answer(exchange: Exchange) -> bytes:
    """Answer a conversation.

    Raises:
        Refusal: it failed or took too long.
        OutriderError: it cannot be served.
    """
    return await exchange.complete(partial(_written, exchange))


def _written(exchange: Exchange, choices: Sequence[Choice]) -> bytes:
    made = [_choice(exchange, choice) for choice in choices]
    done = ChatAnswer(
        **exchange.head,
        choices=made,
        usage=exchange.usage,
        timings=exchange.timings,
        prompt_logprobs=_of_prompt(exchange),
    )
    return done.model_dump_json().encode()


def _choice(exchange: Exchange, choice: Choice) -> ChatChoice:
    text = _text(exchange)
    text.count(choice.token_ids)
    exchange.reasoning += text.reasoning_tokens
    parts, pieces = text.pieces(choice.pieces(), ended=True)
    return ChatChoice(
        index=choice.index,
        message=whole(parts),
        logprobs=logprobs.of_chat(exchange.tokenizer, choice.logprobs),
        finish_reason=_reason(choice.finish_reason, text),
        stop_reason=choice.stop_reason,
        seed=choice.seed,
        pieces=pieces if exchange.wishes.pieces else None,
    )


def _text(exchange: Exchange) -> AnswerText:
    assert exchange.wishes.form is not None
    return AnswerText(exchange.wishes.form, exchange.tokenizer, one_call=exchange.wishes.one_call)


def _reason(reason: FinishReason, text: AnswerText) -> str:
    """Why an answer ended, in OpenAI's words."""
    return _CALLED if text.calls and reason is FinishReason.STOP else FINISH[reason]


def _of_prompt(exchange: Exchange) -> list[dict[str, object] | None] | None:
    request = exchange.requests[0]
    if request.params.prompt_logprobs is None:
        return None
    return logprobs.of_prompt(exchange.tokenizer, request.prompt_logprobs)


async def chunks(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """Stream the answers to a conversation as events; one chunk for each round and answer."""
    async with exchange.called(ends_only=False) as ticket:
        writer = _ChatWriter(exchange, [_text(exchange) for _ in ticket.call.requests])
        yield b""  # the engine has taken the requests
        yield writer.opening()
        async for step in exchange.steps(ticket):
            if (chunk := writer.chunk(step)) is not None:
                yield chunk
        if exchange.wishes.include_usage or exchange.wishes.timings:
            yield writer.closing()
    yield DONE


class _ChatWriter:
    """Writes the chunks of all answers.

    Args:
        exchange: the request.
        texts: each answer's.
    """

    def __init__(self, exchange: Exchange, texts: Sequence[AnswerText]) -> None:
        self._exchange, self._texts = exchange, texts
        self._events = exchange.chunk_events(ChatChunk(**exchange.head, choices=[]))

    def opening(self) -> bytes:
        """The role, before anything is known."""
        choices = [ChunkChoice(index=i, delta=Delta(role="assistant", content="")) for i in range(len(self._texts))]
        return self._event(choices)

    def chunk(self, step: Step) -> bytes | None:
        """What a round added; None where there is nothing to tell yet."""
        text, pieces = self._texts[step.place], None
        text.count(step.tokens)
        if step.pieces is None:
            parts = text.parts(step.text, ended=step.ended)
        else:
            parts, pieces = text.pieces(step.pieces, ended=step.ended)
        added = delta(parts)
        if not (added or step.logprobs or step.ended):
            return None
        if step.text_alone and len(parts) == 1 and isinstance(parts[0], Content) and not self._tells_usage:
            said = {"content": parts[0].text}
            return self._events.quick({"index": step.place, "delta": said, "logprobs": None, "finish_reason": None})
        reason = step.request.finish_reason if step.ended else None
        choice = ChunkChoice(
            index=step.place,
            delta=added or Delta(),
            logprobs=logprobs.of_chat(self._exchange.tokenizer, step.logprobs),
            finish_reason=None if reason is None else _reason(reason, text),
            stop_reason=step.request.stop_reason if step.ended else None,
            seed=step.request.seed if step.ended else None,
            pieces=pieces,
        )
        return self._event([choice])

    @property
    def _tells_usage(self) -> bool:
        return self._exchange.wishes.continuous_usage

    def closing(self) -> bytes:
        """Usage and timings."""
        exchange = self._exchange
        usage = self._usage if exchange.wishes.include_usage else None
        return self._event([], usage=usage, timings=exchange.timings)

    @property
    def _usage(self) -> Usage:
        self._exchange.reasoning = sum(text.reasoning_tokens for text in self._texts)
        return self._exchange.usage

    def _event(self, choices: Sequence[ChunkChoice], **more: Any) -> bytes:
        if self._tells_usage:
            more.setdefault("usage", self._usage)
        return self._events.whole(choices, **more)
