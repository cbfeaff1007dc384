"""One HTTP request and its answer: what the engine did, read off its requests as they go on."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from outrider.completion import Choice, add_piece
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import FinishReason, TokenStream
from outrider.requests.turn import Progress
from outrider.server.account import timings, usage
from outrider.server.desk import Desk, Lane, Ticket
from outrider.server.failures import refusal_of
from outrider.server.sse import ChunkEvents
from outrider.server.wire.shared import AnswerHead, Timings, Usage
from outrider.server.wishes import Wishes


class Step(NamedTuple):
    """What one round added to one output."""

    place: int
    """Of the output; the outputs of all prompts are counted through."""
    request: Request
    text: str
    logprobs: Sequence[TokenLogprob] | None
    pieces: list[tuple[str, bool]] | None
    """The text, cut where accepted drafts begin or end."""
    tokens: Sequence[int]
    ended: bool

    @property
    def text_alone(self) -> bool:
        """Whether there is nothing to tell but the text."""
        return not self.ended and self.logprobs is None and self.pieces is None


class Intake(NamedTuple):
    """A request that is still to be read."""

    outputs: int
    """How many it asks for."""
    work: Callable[[], Wishes]
    """Reads it."""
    lane: Lane
    tenant: str | None
    """The owner of its key."""


class Exchange:
    """Follows one request's call.

    Args:
        desk: admits it.
        intake: the request.
        kind: beginning of the answer's id.
    """

    wishes: Wishes
    """What is asked for; known once the request is read."""

    def __init__(self, desk: Desk, intake: Intake, kind: str) -> None:
        self.desk, self._intake = desk, intake
        self._head = AnswerHead(
            id=f"{kind}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=desk.names[0],
            system_fingerprint=desk.fingerprint,
        )
        self.reasoning = 0
        """Tokens of reasoning."""
        self.delivered = 0
        """Tokens that the answer has."""
        self.groups: list[list[Request]] = []

    @property
    def head(self) -> dict[str, Any]:
        """What an answer and all chunks of a stream begin with."""
        return dict(self._head)

    def chunk_events(self, empty: AnswerHead) -> ChunkEvents:
        """What writes the stream's chunks.

        Args:
            empty: a chunk without choices.
        """
        tells_usage = self.wishes.include_usage or self.wishes.continuous_usage
        return ChunkEvents(empty, frozenset() if tells_usage else {"usage"})

    @property
    def requests(self) -> list[Request]:
        """The requests of all prompts, in order."""
        return [request for group in self.groups for request in group]

    def __iter__(self) -> Iterator[Request]:
        """The requests, as far as the engine has taken them."""
        return iter(self.requests)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.desk.tokenizer

    @property
    def usage(self) -> Usage:
        """Tokens and drafts so far."""
        return usage(
            self.groups,
            self.desk.algorithm,
            completion=self.delivered,
            predicts=self.wishes.predicts,
            reasoning=self.reasoning,
        )

    @property
    def timings(self) -> Timings | None:
        """How long it took, if that was asked."""
        return timings(self.requests, self.desk.one_row_seconds) if self.wishes.timings else None

    @asynccontextmanager
    async def called(self, *, ends_only: bool) -> AsyncIterator[Ticket]:
        """Read the request and queue its call; whatever of it is open when the block ends is cancelled.

        Raises:
            Refusal: it cannot be admitted, or fields contradict each other.
            OutriderError: it cannot be served.
        """
        with self.desk.admitted(self._intake.outputs, self._intake.tenant):
            self.wishes = wishes = await self.desk.run(self._intake.work, self._intake.lane)
            async with self.desk.called(wishes.specs, ends_only=ends_only, seconds=wishes.seconds) as ticket:
                self.groups = ticket.call.groups
                yield ticket

    async def complete(self, write: Callable[[list[Choice]], bytes]) -> bytes:
        """Wait for all outputs, and write the answer.

        Args:
            write: writes it, of all outputs.

        Raises:
            Refusal: one of them failed or took too long.
            OutriderError: the request cannot be served.
        """
        async with self.called(ends_only=True) as ticket:
            async for item in ticket.progress():
                self.desk.watcher.ended(item.request)
                _check(item.request)
            choices = [ticket.call.choice(request) for request in self.requests]
            self.delivered = sum(len(choice.token_ids) for choice in choices)
            return await self.desk.run(partial(write, choices), self._writing)

    @property
    def _writing(self) -> Lane:
        """What writing a whole answer takes: log-probabilities are tens of values for each token."""
        each = [params for _, params in self.wishes.specs]
        told = any((params.logprobs, params.prompt_logprobs) != (None, None) for params in each)
        return Lane.LONG if told else Lane.QUICK

    async def steps(self, ticket: Ticket) -> AsyncIterator[Step]:
        """What each round adds, to the end of all outputs.

        Raises:
            Refusal: an output failed or took too long.
        """
        readers = [_OutputReader(place, request, self) for place, request in enumerate(self.requests)]
        by_request = {reader.request.id: reader for reader in readers}
        async for item in ticket.progress():
            self.desk.watcher.progressed(item)
            if item.finished:
                self.desk.watcher.ended(item.request)
                _check(item.request)
            self.delivered += len(item.tokens)
            yield by_request[item.request.id].step(item)


class _OutputReader:
    """Reads one output round by round."""

    def __init__(self, place: int, request: Request, exchange: Exchange) -> None:
        self.place, self.request, self._logprobs = place, request, 0
        tokenizer, skips = exchange.desk.llm.tokenizer, request.params.skip_special_tokens
        self._stream: TokenStream | None = None
        if exchange.wishes.pieces and tokenizer is not None:  # without one there is no text to cut
            self._stream = tokenizer.stream(skips)
        self._unsaid: list[tuple[str, bool]] = []
        """Text that a round decoded and the output holds back."""

    def step(self, item: Progress) -> Step:
        logprobs = None
        if self.request.params.logprobs is not None:
            start, self._logprobs = self._logprobs, self._logprobs + len(item.tokens)
            logprobs = self.request.logprobs[start : self._logprobs]
        pieces = None if self._stream is None else self._pieces(self._stream, item)
        return Step(self.place, self.request, item.text, logprobs, pieces, item.tokens, item.finished)

    def _pieces(self, stream: TokenStream, item: Progress) -> list[tuple[str, bool]]:
        decoded = [(stream.push(token), place < item.drafted) for place, token in enumerate(item.tokens)]
        found, left = list[tuple[str, bool]](), len(item.text)
        self._unsaid, waiting = [], self._unsaid + decoded
        for text, drafted in waiting:
            said, unsaid = text[:left], text[left:]
            left -= len(said)
            add_piece(found, said, drafted)
            if unsaid:
                self._unsaid.append((unsaid, drafted))
        return found


def _check(request: Request) -> None:
    if request.finish_reason is FinishReason.ERROR:
        assert request.failure is not None
        raise refusal_of(request.failure)


FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "stop"}
"""OpenAI's words for the end of an output."""
