"""One engine for several threads: whoever waits for a result runs rounds for all, one thread at a time.

The lock guards what is written here and is never held during a round.  A request enters and leaves the engine between
two rounds.  A caller that is asleep wakes when a round has something for it, or when nobody runs the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from outrider.completion import Choice, Chunk
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.turn import Progress
from outrider.errors import RequestError
from outrider.metrics import PhaseSeconds
from outrider.sampling.params import SamplingParams

Wish = tuple[Sequence[int], SamplingParams]
"""A prompt's token ids, and what is asked of its outputs."""


class Call:
    """The requests of one caller, and what became of them.

    Args:
        engine: what decodes them.
        lock: guards what rounds write here.
        ends_only: whether the caller asks for nothing before a request has ended.
    """

    def __init__(self, engine: Engine, lock: threading.Lock, ends_only: bool) -> None:
        self.groups: list[list[Request]] = []
        """The requests of each prompt."""
        self.items: deque[Progress] = deque()
        """What the caller has not taken yet."""
        self.ready = threading.Condition(lock)
        self.open = 0
        """Requests that have not ended."""
        self.dropped = False
        """Whether the caller wants nothing more."""
        self.seconds = PhaseSeconds()
        """The engine's time from the call's beginning to its last end."""
        self._engine, self._ends_only, self._before = engine, ends_only, engine.seconds.copy()
        self._drafted: dict[str, list[bool]] = {}

    @property
    def requests(self) -> list[Request]:
        """Those of all prompts."""
        return [request for group in self.groups for request in group]

    def take(self, item: Progress) -> None:
        """Keep what a round did, and wake the caller where that is what it waits for."""
        self.open -= item.finished
        marks = self._drafted.setdefault(item.request.id, [])
        marks += [place < item.drafted for place in range(len(item.tokens))]
        if not self.open:
            self.seconds = self._engine.seconds.minus(self._before)
        if item.finished or not self._ends_only:
            self.items.append(item)
            self.ready.notify_all()

    def choice(self, request: Request) -> Choice:
        """The output of a request that has ended."""
        tokenizer = self._engine.tokenizer
        decoder = None if tokenizer is None else partial(tokenizer.stream, request.params.skip_special_tokens)
        return Choice.of(request, self._drafted.get(request.id, ()), decoder)


class SharedEngine:
    """Lets several threads submit to one engine and wait for what is theirs.

    Args:
        engine: nobody else may run its rounds while calls are open here.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._lock = threading.Lock()
        self._round_over = threading.Condition(self._lock)
        self._runner: int | None = None
        """The thread that is inside a round."""
        self._guests = 0
        """Threads that wait to do something between two rounds, which goes before the next one."""
        self._calls: dict[str, Call] = {}
        self._asleep: list[Call] = []
        self._dropped: deque[Call] = deque()
        """Calls to cancel; a garbage collection may add one at any point of any thread."""

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            RequestError: it was closed.
        """
        if self._engine is None:
            raise RequestError("this LLM is closed; make a new one")
        return self._engine

    @property
    def closed(self) -> bool:
        """Whether nothing more can be asked."""
        return self._engine is None

    def submit(self, wishes: Iterable[Wish], *, ends_only: bool) -> Call:
        """Queue completions, all of them before the next round.

        Args:
            wishes: prompts and their parameters; each gets as many requests as its ``n``.
            ends_only: whether :meth:`wait` is to give nothing before a request has ended.

        Raises:
            RequestError: a prompt cannot be served; none is queued then.
            ConfigError: the same of parameters.
        """
        call = Call(self.engine, self._lock, ends_only)
        with self._between_rounds():
            try:
                for prompt, params in wishes:
                    self._admit(call, prompt, params)
            except BaseException:
                self._cancel(call)
                raise
        return call

    def wait(self, call: Call) -> Progress | None:
        """The next thing that happened to a call's requests, or None when there will be none.

        The calling thread runs rounds itself while no other does.  An exception that escapes a round it runs is its
        own; others go on.
        """
        self._refuse_the_runner()
        try:
            with self._lock:
                try:
                    while call.open and not call.items and not call.dropped:
                        if self._runner is None and not self._guests:
                            self._run_round()
                        else:
                            self._sleep(call)
                    return call.items.popleft() if call.items and not call.dropped else None
                finally:
                    self._wake_one()
        finally:
            self._cancel_dropped()

    def drop(self, call: Call) -> None:
        """Cancel what is open of a call: at once between rounds, else when the round ends; never waits."""
        call.dropped = True
        if call.open:
            self._dropped.append(call)
            self._cancel_dropped()

    def clear_prefix_cache(self) -> None:
        """See :meth:`outrider.engine.engine.Engine.clear_prefix_cache`."""
        with self._between_rounds():
            self.engine.clear_prefix_cache()

    def close(self) -> None:
        """Cancel every open call, and let go of the engine."""
        if self._engine is None:
            return
        with self._between_rounds():
            for call in set(self._calls.values()):
                self._cancel(call)
            self._engine = None

    @contextmanager
    def _between_rounds(self) -> Iterator[None]:
        self._refuse_the_runner()
        try:
            with self._lock:
                self._guests += 1
                try:
                    while self._runner is not None:
                        self._round_over.wait()
                    yield
                finally:
                    self._guests -= 1
                    self._wake_one()
        finally:
            self._cancel_dropped()

    def _refuse_the_runner(self) -> None:
        if self._runner == threading.get_ident():
            raise RequestError("a logits processor or drafter called the LLM that runs it; give it another LLM to call")

    def _admit(self, call: Call, prompt: Sequence[int], params: SamplingParams) -> None:
        group: list[Request] = []
        call.groups.append(group)
        for choice in range(params.n):
            seed = group[0].seed if group else None
            request = self.engine.submit(prompt, params, choice=choice, seed=seed)
            group.append(request)
            call.open += 1
            self._calls[request.id] = call

    def _run_round(self) -> None:
        """Run a round for all, with the lock let go meanwhile."""
        engine, progress = self.engine, []
        self._runner = threading.get_ident()
        self._lock.release()
        try:
            progress = engine.step()
        finally:
            self._lock.acquire()
            self._runner = None
            self._deliver(progress)
            self._cancel_all_dropped()
            self._round_over.notify_all()
        assert progress or not (self._calls and engine.idle), "somebody else ran this engine's rounds"

    def _sleep(self, call: Call) -> None:
        self._asleep.append(call)
        try:
            call.ready.wait()
        finally:
            self._asleep.remove(call)

    def _wake_one(self) -> None:
        """See to it that somebody runs the next round, if anybody waits for one."""
        if self._runner is None and not self._guests and self._asleep:
            self._asleep[0].ready.notify()

    def _deliver(self, progress: Sequence[Progress]) -> None:
        for item in progress:
            name = item.request.id
            if name in self._calls:
                call = self._calls.pop(name) if item.finished else self._calls[name]
                call.take(item)

    def _cancel(self, call: Call) -> None:
        if self._engine is not None:
            for request in call.requests:
                self._engine.cancel(request)
            self._deliver(self._engine.end_cancelled())

    def _cancel_all_dropped(self) -> None:
        while self._dropped:
            self._cancel(self._dropped.popleft())

    def _cancel_dropped(self) -> None:
        """Cancel what was dropped, unless whoever holds the lock will: this may run inside anything."""
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                if self._runner is not None:
                    return
                self._cancel_all_dropped()
            finally:
                self._lock.release()


class Stream(Iterator[Chunk]):
    """The pieces of a prompt's outputs as they come, from any thread.

    Decoding goes on between two pieces while anybody waits for the same :class:`outrider.LLM`; what is not read yet is
    kept.  Closing it early, or leaving a ``with`` block, cancels the request and gives back its pages.
    """

    def __init__(self, shared: SharedEngine, call: Call) -> None:
        self._shared, self._call = shared, call

    def __next__(self) -> Chunk:
        item = self._shared.wait(self._call)
        if item is None:
            raise StopIteration
        whole = self._call.choice(item.request) if item.finished else None
        return Chunk(item.request.choice, item.text, item.tokens, item.drafted, whole)

    def close(self) -> None:
        """Cancel what has not ended; the iterator is over then, in whichever thread it is read."""
        self._shared.drop(self._call)

    def __repr__(self) -> str:
        """How many outputs are open, and how many chunks wait to be read."""
        call = self._call
        return "Stream(closed)" if call.dropped else f"Stream(open={call.open}, unread={len(call.items)})"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
