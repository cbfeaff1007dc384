"""Completes prompts: whole, or as a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import cached_property, partial
from typing import Any

from outrider.completion import Choice
from outrider.requests.request import Request, TokenLogprob
from outrider.server import logprobs
from outrider.server.desk import Lane
from outrider.server.exchange import FINISH, Exchange, Step
from outrider.server.sse import DONE, ChunkEvents
from outrider.server.wire.completions import CompletionAnswer, CompletionChoice, CompletionLogprobs


class _Prompt:
    """What all outputs of one prompt tell of it; it is made once.

    Args:
        exchange: the request.
        first: the prompt's first output, which has the prompt's log-probabilities.
        echo: the prompt's text; None where the outputs begin without it.
    """

    def __init__(self, exchange: Exchange, first: Request, echo: str | None) -> None:
        self._exchange, self._first, self._told = exchange, first, first.params.prompt_logprobs is not None
        self.text = echo or ""
        self.heads_text = self._told and echo is not None and first.params.logprobs is not None
        """Whether the prompt's log-probabilities are part of the text's."""

    @cached_property
    def logprobs(self) -> CompletionLogprobs | None:
        """The part that is the prompt's of the text's log-probabilities; None if there is none."""
        if not self.heads_text:
            return None
        ids = self._first.inputs[: self._first.prompt_length]
        return logprobs.of_echo(self._exchange.tokenizer, self.text, ids, self._first.prompt_logprobs)

    @cached_property
    def beside(self) -> list[dict[str, Any] | None] | None:
        """The prompt's log-probabilities, where they were asked for and are not part of the text's."""
        if not self._told or self.heads_text:
            return None
        return logprobs.of_prompt(self._exchange.tokenizer, self._first.prompt_logprobs)


def _prompts(exchange: Exchange) -> list[_Prompt]:
    """The prompt of each output."""
    groups = exchange.groups
    echoes: Sequence[str | None] = exchange.wishes.echoes or [None] * len(groups)
    made = [_Prompt(exchange, group[0], echo) for group, echo in zip(groups, echoes, strict=True)]
    return [prompt for prompt, group in zip(made, groups, strict=True) for _ in group]


async def answer(exchange: Exchange) -> bytes:
    """Complete prompts.

    Raises:
        Refusal: it failed or took too long.
        OutriderError: it cannot be served.
    """
    return await exchange.complete(partial(_written, exchange))


def _written(exchange: Exchange, choices: Sequence[Choice]) -> bytes:
    outputs = zip(exchange.requests, choices, _prompts(exchange), strict=True)
    made = [_choice(exchange, index, *output) for index, output in enumerate(outputs)]
    done = CompletionAnswer(**exchange.head, choices=made, usage=exchange.usage, timings=exchange.timings)
    return done.model_dump_json().encode()


def _choice(exchange: Exchange, index: int, request: Request, choice: Choice, prompt: _Prompt) -> CompletionChoice:
    tokens = _Tokens(exchange, request, prompt)
    return CompletionChoice(
        index=index,
        text=prompt.text + choice.text,
        logprobs=None if choice.logprobs is None else tokens.read(choice.token_ids, choice.logprobs),
        finish_reason=FINISH[choice.finish_reason],
        stop_reason=choice.stop_reason,
        seed=choice.seed,
        prompt_logprobs=prompt.beside,
        pieces=_pieces(prompt.text, choice.pieces()) if exchange.wishes.pieces else None,
    )


def _pieces(echo: str, pieces: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """The text in pieces, with what it begins with."""
    return [(echo, False), *pieces] if echo else list(pieces)


class _Tokens:
    """Log-probabilities of one output's text, the prompt's first where the text begins with it."""

    def __init__(self, exchange: Exchange, request: Request, prompt: _Prompt) -> None:
        self._exchange, self._skips, self._prompt = exchange, request.params.skip_special_tokens, prompt
        self._begun = False

    @cached_property
    def _output(self) -> logprobs.CompletionTokens:
        return logprobs.CompletionTokens(self._exchange.tokenizer, skips=self._skips, echo=self._prompt.text)

    def read(self, tokens: Sequence[int], found: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """What the next tokens add."""
        added = self._output.read(tokens, found)
        before = None if self._begun else self._prompt.logprobs
        self._begun = True
        return added if before is None else logprobs.joined(before, added)


async def chunks(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """Stream completions as events; one chunk for each round and output."""
    async with exchange.called(ends_only=False) as ticket:
        events = exchange.chunk_events(CompletionAnswer(**exchange.head, choices=[]))
        outputs = zip(exchange.requests, _prompts(exchange), strict=True)
        writers = [_CompletionWriter(exchange, events, *output) for output in outputs]
        yield b""  # the engine has taken the requests
        async for step in _first_ones_first(exchange.steps(ticket)):
            writer = writers[step.place]
            if (chunk := await exchange.desk.run(partial(writer.chunk, step), writer.lane)) is not None:
                yield chunk
        if exchange.wishes.include_usage or exchange.wishes.timings:
            usage = exchange.usage if exchange.wishes.include_usage else None
            yield events.whole([], usage=usage, timings=exchange.timings)
    yield DONE


async def _first_ones_first(steps: AsyncIterator[Step]) -> AsyncIterator[Step]:
    """The steps; where a prompt's first output has the prompt's log-probabilities, none of the others comes before it.

    They may be faster, for they need not compute what is cached.
    """
    begun, held = set[int](), dict[int, list[Step]]()
    async for step in steps:
        first = step.place - step.request.choice
        waits = step.request.params.prompt_logprobs is not None and step.request.choice
        if waits and first not in begun:
            held.setdefault(first, []).append(step)
            continue
        begun.add(first)
        yield step
        for late in held.pop(first, ()):
            yield late


class _CompletionWriter:
    """Writes one output's chunks."""

    def __init__(self, exchange: Exchange, events: ChunkEvents, request: Request, prompt: _Prompt) -> None:
        self._exchange, self._events, self._echo = exchange, events, prompt.text
        self._tokens = _Tokens(exchange, request, prompt)
        self.lane = Lane.LONG if prompt.heads_text else Lane.QUICK
        """What the next chunk takes to write."""

    def chunk(self, step: Step) -> bytes | None:
        """What a round added; None where there is nothing to tell yet."""
        echo, self._echo, self.lane = self._echo, "", Lane.QUICK
        text = echo + step.text
        if not (text or step.logprobs or step.ended):
            return None
        if step.text_alone and not self._exchange.wishes.continuous_usage:
            return self._events.quick({"index": step.place, "text": text, "logprobs": None, "finish_reason": None})
        reason = step.request.finish_reason if step.ended else None
        choice = CompletionChoice(
            index=step.place,
            text=text,
            logprobs=None if step.logprobs is None else self._tokens.read(step.tokens, step.logprobs),
            finish_reason=None if reason is None else FINISH[reason],
            stop_reason=step.request.stop_reason if step.ended else None,
            seed=step.request.seed if step.ended else None,
            pieces=None if step.pieces is None else _pieces(echo, step.pieces),
        )
        told = {"usage": self._exchange.usage} if self._exchange.wishes.continuous_usage else {}
        return self._events.whole([choice], **told)
