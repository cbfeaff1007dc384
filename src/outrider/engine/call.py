"""The requests of one caller, and the events that report on them."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from outrider.completion import Choice, Completion
from outrider.engine.engine import Engine
from outrider.metrics import PhaseSeconds
from outrider.requests.request import Request
from outrider.requests.turn import Progress
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.models.files.tokenizer import Tokenizer

RequestSpec = tuple[Sequence[int], SamplingParams]
"""A prompt's token ids and its sampling parameters."""


class _Sign:
    """An event that is neither progress nor an error."""


ADMITTED: Final = _Sign()
"""The requests are queued."""
END: Final = _Sign()
"""The last event."""
Event = Progress | BaseException | _Sign


class Listener(NamedTuple):
    """A caller that waits for an event."""

    loop: asyncio.AbstractEventLoop | None = None
    """Runs the coroutine; None for a thread."""
    arrived: weakref.ref[asyncio.Future[None]] | None = None
    """What the coroutine waits for."""


_BLOCKED: Final = Listener()
"""A thread."""


class Call:
    """The requests of one caller.  The thread that runs rounds writes it; the caller reads its events.

    Args:
        wishes: prompts and their parameters.
        tokenizer: makes text of tokens; None where there is none.
        ends_only: whether the caller asks for nothing before a request has ended.
    """

    def __init__(self, wishes: Iterable[RequestSpec], tokenizer: Tokenizer | None, *, ends_only: bool) -> None:
        self.wishes = list(wishes)
        self.groups: list[list[Request]] = []
        """The requests of each prompt."""
        self.open = sum(params.n for _, params in self.wishes)
        """Requests that have not ended."""
        self.posted = time.perf_counter()
        """When the caller asked."""
        self.dropped = False
        """Whether the caller has cancelled."""
        self.seconds = PhaseSeconds()
        """The engine's time while the call was open."""
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.readers: list[Listener] = []
        """The callers that wait for an event."""
        self.reported = False
        """Whether an unread event is an error."""
        self.ends_only, self._tokenizer, self._clock = ends_only, tokenizer, self.seconds
        self._before = self.seconds
        self._drafted: dict[str, list[bool]] = {}

    @property
    def requests(self) -> list[Request]:
        """The requests of all prompts."""
        return [request for group in self.groups for request in group]

    @property
    def unread(self) -> int:
        """Number of unread events."""
        return max(0, self.events.qsize() - (self.open == 0))

    def put(self, event: Event, later: dict[asyncio.AbstractEventLoop, list[Listener]] | None = None) -> None:
        """Add an event and wake the readers; never blocks.

        Args:
            event: is kept until it is read.
            later: gets the readers that :func:`wake` is to wake, by their event loop; None wakes them now.
        """
        self.events.put(event)
        for reader in self.readers.copy():
            if reader.loop is None:
                continue  # a thread that blocks on the queue needs no waking
            if later is None:
                wake(reader.loop, [reader])
            else:
                later.setdefault(reader.loop, []).append(reader)

    def read(self, waiting: Callable[[], None]) -> Event:
        """The next event; blocks until there is one.

        Args:
            waiting: called before that, if there is none.
        """
        if not self.events.empty():
            with suppress(Empty):  # another thread may read too
                return self.events.get_nowait()
        self.readers.append(_BLOCKED)
        try:
            waiting()
            return self.events.get()
        finally:
            self.readers.remove(_BLOCKED)

    async def awaited(self, waiting: Callable[[], None]) -> Event:
        """The next event, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self.events.get_nowait()
            except Empty:
                arrived: asyncio.Future[None] = loop.create_future()
            # Not kept alive by the call: a coroutine that is dropped unfinished cancels its requests.
            reader = Listener(loop, weakref.ref(arrived))
            self.readers.append(reader)
            try:
                if self.events.empty():  # else one came before the reader could be woken
                    waiting()
                    await arrived
            finally:
                self.readers.remove(reader)

    def opened(self, event: Event) -> Progress | None:
        """Read an event: progress, or None if it has none.

        Raises:
            BaseException: what a round raised, or why the requests were refused.
        """
        if event is END:
            self.put(END)  # for whoever else reads
        if isinstance(event, BaseException):
            self.reported = False
            try:
                raise event
            finally:
                del event  # an error that holds a frame that holds the error would live on
        return event if isinstance(event, Progress) and not self.dropped else None

    def began(self, engine: Engine) -> None:
        """Start measuring: the requests are about to be queued."""
        self._clock, self._before = engine.seconds, engine.seconds.copy()

    def note(self, item: Progress) -> bool:
        """Count the progress of a round; return whether the caller wants the event."""
        marks = self._drafted.setdefault(item.request.id, [])
        marks += [place < item.drafted for place in range(len(item.tokens))]
        self.open -= item.finished
        if not self.open:
            self.seconds = self._clock.minus(self._before)
        return item.finished or not self.ends_only

    def choice(self, request: Request) -> Choice:
        """The output of a request that has ended."""
        tokenizer = self._tokenizer
        decoder = None if tokenizer is None else partial(tokenizer.stream, request.params.skip_special_tokens)
        return Choice.of(request, self._drafted.get(request.id, ()), decoder)

    def completions(self) -> list[Completion]:
        """The outputs of every prompt, once all have ended."""
        return [
            Completion(
                prompt_token_ids=tuple(prompt),
                choices=tuple(map(self.choice, group)),
                seconds=self.seconds,
                prompt_logprobs=None if params.prompt_logprobs is None else tuple(group[0].prompt_logprobs),
            )
            for (prompt, params), group in zip(self.wishes, self.groups, strict=True)
        ]


def wake(loop: asyncio.AbstractEventLoop, readers: Sequence[Listener]) -> None:
    """Wake the coroutines of one event loop, with one call into it."""
    with suppress(RuntimeError):  # the loop was closed, and its readers with it
        loop.call_soon_threadsafe(_set, readers)


def _set(readers: Sequence[Listener]) -> None:
    for reader in readers:
        if reader.arrived is not None and (arrived := reader.arrived()) is not None and not arrived.done():
            arrived.set_result(None)
