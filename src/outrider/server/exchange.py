"""One HTTP request and its answer: what the engine did, read off its requests as they go on."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from outrider.completion import Choice
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import FinishReason, TokenStream
from outrider.requests.turn import Progress
from outrider.server.account import timings, usage
from outrider.server.desk import Desk, Ticket
from outrider.server.failures import refusal_of
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


class Exchange:
    """Follows one request's call.

    Args:
        desk: admits it.
        wishes: what is asked for.
        kind: beginning of the answer's id.
    """

    def __init__(self, desk: Desk, wishes: Wishes, kind: str) -> None:
        self.wishes, self.desk = wishes, desk
        self.id, self.created, self.model = f"{kind}-{secrets.token_hex(12)}", int(time.time()), desk.names[0]
        self.reasoning = 0
        """Tokens of reasoning."""
        self.groups: list[list[Request]] = []

    @property
    def head(self) -> dict[str, Any]:
        """What an answer and all chunks of a stream begin with."""
        head = AnswerHead(id=self.id, created=self.created, model=self.model, system_fingerprint=self.desk.fingerprint)
        return dict(head)

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
        return usage(self.groups, self.desk.algorithm, predicts=self.wishes.predicts, reasoning=self.reasoning)

    @property
    def timings(self) -> Timings | None:
        """How long it took, if that was asked."""
        return timings(self.requests, self.desk.one_row_seconds) if self.wishes.timings else None

    @asynccontextmanager
    async def called(self, *, ends_only: bool) -> AsyncIterator[Ticket]:
        """Queue the call; see :meth:`Desk.called`.  From here on the usage can be told."""
        async with self.desk.called(self.wishes.specs, ends_only=ends_only, seconds=self.wishes.seconds) as ticket:
            self.groups = ticket.call.groups
            yield ticket

    async def complete(self) -> list[Choice]:
        """Wait for all outputs.

        Raises:
            Refusal: one of them failed or took too long.
            OutriderError: the engine refuses them.
        """
        async with self.called(ends_only=True) as ticket:
            async for item in ticket.progress():
                self.desk.watcher.ended(item.request)
                _check(item.request)
            return [ticket.call.choice(request) for request in self.requests]

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
            yield by_request[item.request.id].step(item)


class _OutputReader:
    """Reads one output round by round."""

    def __init__(self, place: int, request: Request, exchange: Exchange) -> None:
        self.place, self.request, self._logprobs = place, request, 0
        skips = request.params.skip_special_tokens
        self._stream: TokenStream | None = exchange.tokenizer.stream(skips) if exchange.wishes.pieces else None
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
            if found and found[-1][1] == drafted:
                found[-1] = (found[-1][0] + said, drafted)
            elif said:
                found.append((said, drafted))
            if unsaid:
                self._unsaid.append((unsaid, drafted))
        return found


def _check(request: Request) -> None:
    if request.finish_reason is FinishReason.ERROR:
        assert request.failure is not None
        raise refusal_of(request.failure)


FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "stop"}
"""OpenAI's words for the end of an output."""
