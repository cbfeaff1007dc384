"""Completes prompts: whole, or as a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from outrider.completion import Choice
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import TokenStream
from outrider.server.exchange import FINISH, Exchange, Step
from outrider.server.logprobs import Offsets, of_prompt
from outrider.server.sse import DONE, ChunkEvents, event
from outrider.server.wire.completions import CompletionAnswer, CompletionChoice, CompletionLogprobs


async def answer(exchange: Exchange, echoes: Sequence[str]) -> CompletionAnswer:
    """Complete prompts.

    Args:
        exchange: the request.
        echoes: text to begin with, by prompt.

    Raises:
        Refusal: it failed or took too long.
        OutriderError: the engine refuses it.
    """
    choices = await exchange.complete()
    texts = [echo for echo, group in zip(echoes, exchange.groups, strict=True) for _ in group]
    made = [
        _choice(exchange, index, request, choice, echo)
        for index, (request, choice, echo) in enumerate(zip(exchange.requests, choices, texts, strict=True))
    ]
    return CompletionAnswer(
        **exchange.head,
        choices=made,
        usage=exchange.usage,
        timings=exchange.timings,
    )


def _choice(exchange: Exchange, index: int, request: Request, choice: Choice, echo: str) -> CompletionChoice:
    asked = request.params.prompt_logprobs is not None and not (echo and _echoes(request))
    return CompletionChoice(
        index=index,
        text=echo + choice.text,
        logprobs=_logprobs(exchange, request, echo),
        finish_reason=FINISH[choice.finish_reason],
        stop_reason=choice.stop_reason,
        seed=choice.seed,
        prompt_logprobs=of_prompt(exchange.tokenizer, request.prompt_logprobs) if asked else None,
        pieces=[(echo, False), *choice.pieces()] if exchange.wishes.pieces else None,
    )


def _echoes(request: Request) -> bool:
    """Whether the prompt's log-probabilities are part of the text's."""
    params = request.params
    return params.logprobs is not None and params.prompt_logprobs is not None


def _logprobs(exchange: Exchange, request: Request, echo: str) -> CompletionLogprobs | None:
    """Log-probabilities of the text's tokens, those of the prompt first if the text begins with it."""
    if request.params.logprobs is None:
        return None
    found: list[TokenLogprob | None] = list(request.logprobs)
    tokens, start = request.output_ids, len(echo)
    if echo and _echoes(request):
        found, tokens, start = [*request.prompt_logprobs, *found], request.inputs, 0
    return Offsets(exchange.tokenizer, _whole(exchange, request), start).read(tokens, found)


def _whole(exchange: Exchange, request: Request) -> TokenStream:
    return exchange.tokenizer.stream(request.params.skip_special_tokens)


async def chunks(exchange: Exchange, echoes: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """Stream completions as events; one chunk for each round and output."""
    async with exchange.called(ends_only=False) as ticket:
        texts = [echo for echo, group in zip(echoes, ticket.call.groups, strict=True) for _ in group]
        writers = [
            _CompletionWriter(exchange, request, echo)
            for request, echo in zip(ticket.call.requests, texts, strict=True)
        ]
        yield b""  # the engine has taken the requests
        async for step in exchange.steps(ticket):
            if (chunk := writers[step.place].chunk(step)) is not None:
                yield chunk
        if exchange.wishes.include_usage or exchange.wishes.timings:
            usage = exchange.usage if exchange.wishes.include_usage else None
            yield _event(exchange, [], usage=usage, timings=exchange.timings)
    yield DONE


class _CompletionWriter:
    """Writes one output's chunks."""

    def __init__(self, exchange: Exchange, request: Request, echo: str) -> None:
        self._exchange, self._request, self._echo = exchange, request, echo
        self._quick = ChunkEvents(CompletionAnswer(**exchange.head, choices=[]))
        start = 0 if _echoes(request) else len(echo)
        self._offsets = Offsets(exchange.tokenizer, _whole(exchange, request), start)

    def chunk(self, step: Step) -> bytes | None:
        """What a round added; None where there is nothing to tell yet."""
        echo, self._echo = self._echo, ""
        text = echo + step.text
        if not (text or step.logprobs or step.ended):
            return None
        if step.text_alone and not self._exchange.wishes.continuous_usage:
            choice = {"index": step.place, "text": text, "logprobs": None, "finish_reason": None}
            return self._quick.event(choice)
        reason = step.request.finish_reason if step.ended else None
        whole = CompletionChoice(
            index=step.place,
            text=text,
            logprobs=self._logprobs(step, echo),
            finish_reason=None if reason is None else FINISH[reason],
            stop_reason=step.request.stop_reason if step.ended else None,
            seed=step.request.seed if step.ended else None,
            pieces=step.pieces if step.pieces is None or not echo else [(echo, False), *step.pieces],
        )
        return _event(self._exchange, [whole])

    def _logprobs(self, step: Step, echo: str) -> CompletionLogprobs | None:
        if step.logprobs is None:
            return None
        found, tokens = list[TokenLogprob | None](step.logprobs), list(step.tokens)
        if echo and _echoes(self._request):
            prompt = self._request.inputs[: self._request.prompt_length]
            found, tokens = [*self._request.prompt_logprobs, *found], [*prompt, *tokens]
        return self._offsets.read(tokens, found)


def _event(exchange: Exchange, choices: Sequence[CompletionChoice], **more: Any) -> bytes:
    if exchange.wishes.continuous_usage:
        more.setdefault("usage", exchange.usage)
    chunk = CompletionAnswer(**exchange.head, choices=list(choices), **more)
    return event(chunk.model_dump_json())
