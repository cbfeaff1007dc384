"""One way to drive an engine: callers ask from any thread or event loop, and one thread runs the rounds.

Only that thread touches the engine.  Everybody else puts what they want into its inbox, and reads what rounds did from
the mail of their :class:`Call`.  Both are queues that never block whoever writes: a garbage collection may drop a
stream in the middle of anything, and an event loop never waits for a round.

The thread begins with the first call and sleeps while there is none.  Asleep it holds nothing but the inbox, so that a
driver nobody refers to is freed at once; then the thread ends.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import torch

from outrider.completion import Choice, Completion
from outrider.engine.call import ADMITTED, END, Call, Letter, Wish
from outrider.engine.engine import Engine
from outrider.engine.rounds import Command, Rounds, nothing, run
from outrider.engine.turn import Progress
from outrider.errors import RequestError

_Name = TypeVar("_Name")
_Result = TypeVar("_Result")
_LAST_ROUND: Final = 5.0
"""Most seconds that the end of the interpreter waits for a round to end."""


class Driver:
    """Runs an engine's rounds for everybody who asks.

    A round that raises leaves every request whole, as :class:`outrider.engine.engine.Engine` promises.  What it raised
    goes to every caller that waits for a result then; if none does, no round is run until one waits and is told.

    Args:
        engine: no other driver may run its rounds while calls are open here.
        threaded: whether rounds are run by a thread of the driver's own.  Without one, whoever waits runs them, and
            only one thread may use the driver: the same calls then always make the same rounds.
    """

    def __init__(self, engine: Engine, *, threaded: bool = True) -> None:
        self._rounds, self._threaded, self._closing = Rounds(engine), threaded, False
        self._tokenizer, self._maker = engine.tokenizer, threading.get_ident()
        self._gate = threading.Lock()
        """Guards the beginning and the end of the thread; never held during a round."""
        self._thread: threading.Thread | None = None
        # The thread wakes when its rounds are gone, and ends.
        weakref.finalize(self._rounds, self._rounds.inbox.put, nothing).atexit = False
        _ALIVE.add(self)

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            RequestError: the driver was closed.
        """
        engine = self._rounds.engine
        if engine is None or self._closing:
            raise RequestError("this LLM is closed; make a new one")
        return engine

    @property
    def closed(self) -> bool:
        """Whether nothing more can be asked."""
        return self._closing

    def post(self, wishes: Iterable[Wish], *, ends_only: bool = False) -> Call:
        """Ask for completions without waiting; all of them begin before the next round, or none.

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
        self._send(partial(Rounds.admit, call=call))
        return call

    def submit(self, wishes: Iterable[Wish], *, ends_only: bool = False) -> Call:
        """Ask for completions and wait until they are queued; see :meth:`post` for arguments.

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

    def wait(self, call: Call) -> Progress | None:
        """The next thing that happened to a call's requests, or None when there will be none.

        Raises:
            BaseException: what a round raised meanwhile; a call that asks for more than ends goes on.
        """
        self._refuse_the_runner()
        letter: Letter = ADMITTED
        while letter is ADMITTED and not call.dropped:
            letter = self._letter(call)
        return call.opened(letter)

    async def awaited(self, call: Call) -> Progress | None:
        """The same for an event loop, which goes on meanwhile."""
        self._refuse_the_runner()
        letter: Letter = ADMITTED
        while letter is ADMITTED and not call.dropped:
            letter = await call.awaited(self._ask_for_fault)
        return call.opened(letter)

    def cancel(self, call: Call) -> None:
        """End what is open of a call before the next round, from any thread at any point; never waits."""
        call.dropped = True
        call.put(END)
        if call.open:
            self._rounds.inbox.put(partial(Rounds.drop, call=call))
            if not self._threaded and self._rounds.runner is None:
                self._rounds.settle()

    def between_rounds(self, work: Callable[[Engine], _Result]) -> _Result:
        """Do something to the engine while no round runs, after all that was asked for before.

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
        """Run one round here and now, whoever's requests are in it.

        Returns:
            What it did.

        Raises:
            RequestError: the driver has a thread of its own for that.
            BaseException: whatever the round raised.
        """
        if self._threaded:
            raise RequestError("this driver runs its rounds in a thread of its own; make one with threaded=False")
        self._refuse_the_runner()
        progress = self._rounds.turn()
        self._rounds.settle()
        fault, self._rounds.fault = self._rounds.fault, None
        if fault is not None:
            raise fault
        return progress

    def complete(self, wishes: Iterable[Wish], advance: Callable[[], None] = lambda: None) -> list[Completion]:
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

    async def acomplete(self, wishes: Iterable[Wish]) -> list[Completion]:
        """The same for an event loop; cancelling the coroutine cancels the requests."""
        call = self.post(wishes, ends_only=True)
        try:
            while await self.awaited(call) is not None:
                pass
        finally:
            self.cancel(call)
        return call.completions()

    def completed(
        self, wishes: Iterable[tuple[_Name, Wish]], most: int
    ) -> Generator[tuple[_Name, Choice | RequestError], None, None]:
        """Complete prompts, and begin the next whenever one ends, so that every pass of the target is full.

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
        """End every open call as cancelled, let go of the engine and end the thread; waits for the round that runs."""
        self._refuse_the_runner()
        thread = self._stop()
        if thread is None or not thread.is_alive():
            self._rounds.settle()
        else:
            thread.join()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refuse_the_runner(self) -> None:
        if self._rounds.runner == threading.get_ident():
            raise RequestError("a logits processor or drafter called the LLM that runs it; give it another LLM to call")

    def _send(self, command: Command) -> None:
        with self._gate:
            self.engine  # noqa: B018 - raises where it was closed
            if self._maker == threading.get_ident():
                self._rounds.torch_threads = torch.get_num_threads()
            self._rounds.inbox.put(command)
            if self._threaded and (self._thread is None or not self._thread.is_alive()):
                work = partial(run, weakref.ref(self._rounds), self._rounds.inbox)
                self._thread = threading.Thread(target=work, name="outrider-engine", daemon=True)
                self._thread.start()
        if not self._threaded:
            self._rounds.settle()

    def _stop(self) -> threading.Thread | None:
        with self._gate:
            self._closing = True
            self._rounds.inbox.put(Rounds.end)
            return self._thread

    def _letter(self, call: Call) -> Letter:
        while not self._threaded and call.mail.empty():
            self.step()
        return call.read(self._ask_for_fault)

    def _ask_for_fault(self) -> None:
        """Once somebody waits, have them told what the last round raised."""
        if self._rounds.fault is not None:
            self._rounds.inbox.put(nothing)


_ALIVE: Final[weakref.WeakSet[Driver]] = weakref.WeakSet()


def _answer(
    work: Callable[[Engine], Any], reply: SimpleQueue[tuple[Any, BaseException | None]], rounds: Rounds
) -> None:
    try:
        assert rounds.engine is not None
        reply.put((work(rounds.engine), None))
    except BaseException as error:  # noqa: BLE001 - the caller is told
        reply.put((None, error))


@atexit.register
def _stop_all() -> None:
    """Let no thread be inside a kernel when the interpreter goes."""
    for thread in [driver._stop() for driver in list(_ALIVE)]:
        if thread is not None:
            thread.join(_LAST_ROUND)
