"""What one caller asked of a driver, and its mail: what became of it so far."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from outrider.completion import Choice, Completion
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.turn import Progress
from outrider.metrics import PhaseSeconds
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.models.files.tokenizer import Tokenizer

Wish = tuple[Sequence[int], SamplingParams]
"""A prompt's token ids, and what is asked of its outputs."""


class _Sign:
    """Mail that is neither progress nor an error."""


ADMITTED: Final = _Sign()
"""The requests are queued."""
END: Final = _Sign()
"""No more will come."""
Letter = Progress | BaseException | _Sign


class Call:
    """The requests of one caller.  The thread that runs rounds writes it; the caller reads its mail.

    Args:
        wishes: prompts and their parameters.
        tokenizer: makes text of tokens; None where there is none.
        ends_only: whether the caller asks for nothing before a request has ended.
    """

    def __init__(self, wishes: Iterable[Wish], tokenizer: Tokenizer | None, *, ends_only: bool) -> None:
        self.wishes = list(wishes)
        self.groups: list[list[Request]] = []
        """The requests of each prompt."""
        self.open = sum(params.n for _, params in self.wishes)
        """Requests that have not ended."""
        self.dropped = False
        """Whether the caller wants nothing more."""
        self.seconds = PhaseSeconds()
        """The engine's time from the call's beginning to its last end."""
        self.mail: SimpleQueue[Letter] = SimpleQueue()
        self.readers: list[Callable[[], None]] = []
        """Who waits for mail now, each with what wakes it."""
        self.told = False
        """Whether an error is in the mail that nobody has read."""
        self._tokenizer, self._ends_only, self._clock = tokenizer, ends_only, self.seconds
        self._before = self.seconds
        self._drafted: dict[str, list[bool]] = {}

    @property
    def requests(self) -> list[Request]:
        """Those of all prompts."""
        return [request for group in self.groups for request in group]

    @property
    def unread(self) -> int:
        """Letters that wait to be read."""
        return max(0, self.mail.qsize() - (self.open == 0))

    def put(self, letter: Letter) -> None:
        """Add to the mail and wake whoever waits for it; never blocks."""
        self.mail.put(letter)
        for wake in self.readers.copy():
            wake()

    def read(self, waiting: Callable[[], None]) -> Letter:
        """The next letter; blocks until there is one.

        Args:
            waiting: called before that, if there is none.
        """
        if not self.mail.empty():
            with suppress(Empty):  # another thread may read too
                return self.mail.get_nowait()
        self.readers.append(_awake)
        try:
            waiting()
            return self.mail.get()
        finally:
            self.readers.remove(_awake)

    async def awaited(self, waiting: Callable[[], None]) -> Letter:
        """The same for an event loop, which goes on meanwhile."""
        arrived = asyncio.Event()
        wake = partial(_wake, asyncio.get_running_loop(), weakref.ref(arrived))
        self.readers.append(wake)
        try:
            while True:
                arrived.clear()
                with suppress(Empty):
                    return self.mail.get_nowait()
                waiting()
                await arrived.wait()
        finally:
            self.readers.remove(wake)

    def opened(self, letter: Letter) -> Progress | None:
        """What a letter says: progress, or None where there is none.

        Raises:
            BaseException: what a round raised, or why the requests were refused.
        """
        if letter is END:
            self.put(END)  # for whoever else reads
        if isinstance(letter, BaseException):
            self.told = False
            try:
                raise letter
            finally:
                del letter  # an error that holds a frame that holds the error would live on
        return letter if isinstance(letter, Progress) and not self.dropped else None

    def began(self, engine: Engine) -> None:
        """The requests are about to be queued."""
        self._clock, self._before = engine.seconds, engine.seconds.copy()

    def note(self, item: Progress) -> bool:
        """Count what a round did; whether the caller is to hear of it."""
        marks = self._drafted.setdefault(item.request.id, [])
        marks += [place < item.drafted for place in range(len(item.tokens))]
        self.open -= item.finished
        if not self.open:
            self.seconds = self._clock.minus(self._before)
        return item.finished or not self._ends_only

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


def _awake() -> None:
    """A reader that its queue wakes."""


def _wake(loop: asyncio.AbstractEventLoop, reference: weakref.ref[asyncio.Event]) -> None:
    """Wake a coroutine, which this does not keep alive: one that is dropped unfinished cancels what it asked for."""
    arrived = reference()
    if arrived is not None:
        with suppress(RuntimeError):  # the loop was closed, and its reader with it
            loop.call_soon_threadsafe(arrived.set)
