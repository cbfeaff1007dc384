"""One way to drive an engine: callers submit from any thread or event loop, and one thread runs the rounds.

Only that thread touches the engine.  Callers put commands into its inbox and read the events of their :class:`Call`.
Both are queues that never block the writer, so a garbage collection may drop a stream at any point, and an event loop
never waits for a round.

The thread starts with the first call and sleeps while none is open.  Asleep it holds only the inbox, so a driver
without references is freed at once; then the thread ends.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import torch

from outrider.completion import Choice, Completion
from outrider.engine.call import ADMITTED, END, Call, Event, RequestSpec
from outrider.engine.engine import Engine
from outrider.engine.loop import Command, EngineLoop, nothing, run
from outrider.errors import RequestError
from outrider.requests.turn import Progress

_Name = TypeVar("_Name")
_Result = TypeVar("_Result")
_LAST_ROUND: Final = 5.0
"""Most seconds that the end of the interpreter waits for a round to end."""


class Driver:
    """Runs an engine's rounds for all callers.

    A round that raises leaves every request whole, as :class:`outrider.engine.engine.Engine` promises.  What it raised
    goes to every caller that waits for a result then; if none does, no round is run until one waits and is told.

    Args:
        engine: no other driver may run its rounds while calls are open here.
        threaded: whether rounds are run by a thread of the driver's own.  Without one, whoever waits runs them, and
            only one thread may use the driver: the same calls then always make the same rounds.
    """

    def __init__(self, engine: Engine, *, threaded: bool = True) -> None:
        self._loop, self._threaded, self._closing = EngineLoop(engine), threaded, False
        self._tokenizer, self._maker = engine.tokenizer, threading.get_ident()
        self._gate = threading.RLock()
        """Guards starting and stopping the thread; never held during a round."""
        self._thread: threading.Thread | None = None
        # The thread wakes when its rounds are gone, and ends.
        weakref.finalize(self._loop, self._loop.inbox.put, nothing).atexit = False
        _ALIVE.add(self)

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            RequestError: the driver was closed.
        """
        engine = self._loop.engine
        if engine is None or self._closing:
            raise RequestError("this LLM is closed; make a new one")
        return engine

    @property
    def closed(self) -> bool:
        """Whether the driver is closed."""
        return self._closing

    @property
    def round_seconds(self) -> float:
        """Seconds that the round which is running has taken so far; 0 between rounds."""
        began = self._loop.began  # once: the other thread sets it to None
        return 0.0 if began is None else time.monotonic() - began

    def post(self, wishes: Iterable[RequestSpec], *, ends_only: bool = False) -> Call:
        """Queue completions without waiting; all of them start before the next round, or none.

        Args:
            wishes: prompts and their parameters; each gets as many requests as its ``n``.
            ends_only: whether reading is to give nothing before a request has ended.

        Returns:
            The call; waiting for it raises what :meth:`submit` does.

        Raises:
            RequestError: the driver was closed, or a logits processor or drafter of its own asks.
        """
        self._refuse_the_runner()
        call = Call(wishes, self._tokenizer, ends_only=ends_only)
        self._send(partial(EngineLoop.admit, call=call))
        return call

    def submit(self, wishes: Iterable[RequestSpec], *, ends_only: bool = False) -> Call:
        """Queue completions and wait until they are queued; arguments are those of :meth:`post`.

        Raises:
            RequestError: a prompt cannot be served; nothing of the call is queued then.
            ConfigError: the same of parameters.
        """
        call = self.post(wishes, ends_only=ends_only)
        try:
            call.opened(self._letter(call))
        except BaseException:
            self.cancel(call)
            raise
        return call

    async def asubmit(self, wishes: Iterable[RequestSpec], *, ends_only: bool = False) -> Call:
        """Like :meth:`submit`, without blocking the event loop."""
        call = self.post(wishes, ends_only=ends_only)
        try:
            call.opened(await call.awaited(self._ask_for_error))
        except BaseException:
            self.cancel(call)
            raise
        return call

    def wait(self, call: Call) -> Progress | None:
        """The next progress of a call, or None at its end.

        Raises:
            BaseException: what a round raised meanwhile; a call that asks for more than ends goes on.
        """
        self._refuse_the_runner()
        event: Event = ADMITTED
        while event is ADMITTED and not call.dropped:
            event = self._letter(call)
        return call.opened(event)

    async def awaited(self, call: Call) -> Progress | None:
        """Like :meth:`wait`, without blocking the event loop."""
        self._refuse_the_runner()
        event: Event = ADMITTED
        while event is ADMITTED and not call.dropped:
            event = await call.awaited(self._ask_for_error)
        return call.opened(event)

    def cancel(self, call: Call) -> None:
        """Cancel the open requests of a call before the next round, from any thread at any time; never waits."""
        call.dropped = True
        call.put(END)
        if call.open:
            self._loop.inbox.put(partial(EngineLoop.drop, call=call))
            if not self._threaded and self._loop.runner is None:
                self._loop.settle()

    def between_rounds(self, work: Callable[[Engine], _Result]) -> _Result:
        """Run a function on the engine between two rounds, after all earlier commands.

        Raises:
            RequestError: the driver was closed, or a logits processor or drafter of its own asks.
        """
        self._refuse_the_runner()
        reply: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._send(partial(_answer, work, reply))
        result, error = reply.get()
        if error is not None:
            raise error
        found: _Result = result
        return found

    def step(self) -> list[Progress]:
        """Run one round in the calling thread, for the requests of all calls.

        Returns:
            What it did.

        Raises:
            RequestError: the driver has a thread of its own for that.
            BaseException: whatever the round raised.
        """
        if self._threaded:
            raise RequestError("this driver runs its rounds in a thread of its own; make one with threaded=False")
        self._refuse_the_runner()
        progress = self._loop.turn()
        self._loop.settle()
        fault, self._loop.error = self._loop.error, None
        if fault is not None:
            raise fault
        return progress

    def complete(self, wishes: Iterable[RequestSpec], advance: Callable[[], None] = lambda: None) -> list[Completion]:
        """Complete prompts and wait for all of them; see :meth:`submit` and :meth:`wait` for errors.

        Args:
            wishes: prompts and their parameters.
            advance: called whenever an output has ended.
        """
        call = self.submit(wishes, ends_only=True)
        try:
            while self.wait(call) is not None:
                advance()
        finally:
            self.cancel(call)
        return call.completions()

    async def acomplete(self, wishes: Iterable[RequestSpec]) -> list[Completion]:
        """Like :meth:`complete`, without blocking the event loop; cancelling the coroutine cancels the requests."""
        call = self.post(wishes, ends_only=True)
        try:
            while await self.awaited(call) is not None:
                pass
        finally:
            self.cancel(call)
        return call.completions()

    def completed(
        self, wishes: Iterable[tuple[_Name, RequestSpec]], most: int
    ) -> Generator[tuple[_Name, Choice | RequestError], None, None]:
        """Complete many prompts, ``most`` at a time; the next one starts when one ends, so every pass is full.

        Args:
            wishes: drawn one by one as there is room, each with the caller's own name for it.
            most: how many are decoded side by side.

        Yields:
            Each name with its output, or with the reason why it cannot be served, in the order they end.

        Raises:
            RequestError: the driver has a thread of its own.
        """
        waiting, running = iter(wishes), dict[str, tuple[_Name, Call]]()
        try:
            while True:
                for name, wish in islice(waiting, most - len(running)):
                    try:
                        call = self.submit([wish], ends_only=True)
                    except RequestError as error:
                        yield name, error
                    else:
                        running[call.requests[0].id] = name, call
                if not running:
                    return
                for item in self.step():
                    if item.finished and item.request.id in running:
                        name, call = running.pop(item.request.id)
                        yield name, call.choice(item.request)
        finally:
            for _, call in running.values():
                self.cancel(call)

    def close(self) -> None:
        """Cancel all open calls, release the engine and end the thread; waits for the current round."""
        self._refuse_the_runner()
        thread = self._stop()
        if thread is None or not thread.is_alive():
            self._loop.settle()
        else:
            thread.join()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refuse_the_runner(self) -> None:
        if self._loop.runner == threading.get_ident():
            raise RequestError("a logits processor or drafter called the LLM that runs it; give it another LLM to call")

    def _send(self, command: Command) -> None:
        with self._gate:
            self.engine  # noqa: B018 - raises where it was closed
            if self._maker == threading.get_ident():
                self._loop.torch_threads = torch.get_num_threads()
            if self._threaded and (self._thread is None or not self._thread.is_alive()):
                work = partial(run, weakref.ref(self._loop), self._loop.inbox)
                thread = threading.Thread(target=work, name="outrider-engine", daemon=True)
                thread.start()  # first: at the end of the interpreter it fails, and nothing is left behind
                self._thread = thread
                _THREADS.add(thread)
            self._loop.inbox.put(command)
        if not self._threaded:
            self._loop.settle()

    def _stop(self) -> threading.Thread | None:
        with self._gate:
            self._closing = True
            self._loop.inbox.put(EngineLoop.end)
            return self._thread

    def _letter(self, call: Call) -> Event:
        while not self._threaded and call.events.empty():
            self.step()
        return call.read(self._ask_for_error)

    def _ask_for_error(self) -> None:
        """Have the error of the last round reported, now that a caller waits."""
        if self._loop.error is not None:
            self._loop.inbox.put(nothing)


_ALIVE: Final[weakref.WeakSet[Driver]] = weakref.WeakSet()
_THREADS: Final[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()
"""All threads that were started; one whose driver was freed may still be in its last round."""


def _answer(
    work: Callable[[Engine], Any], reply: SimpleQueue[tuple[Any, BaseException | None]], loop: EngineLoop
) -> None:
    try:
        assert loop.engine is not None
        reply.put((work(loop.engine), None))
    except BaseException as error:  # noqa: BLE001 - the caller is told
        reply.put((None, error))


@atexit.register
def _stop_all() -> None:
    """Stop all drivers, so that no thread is inside a kernel when the interpreter exits."""
    for driver in list(_ALIVE):
        driver._stop()
    for thread in list(_THREADS):
        thread.join(_LAST_ROUND)
