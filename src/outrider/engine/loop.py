"""The engine loop: runs rounds and reports to every call.  It is the only part of a driver that touches the engine.

One thread runs it.  Other threads put commands into its inbox, which never blocks the writer.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

import torch

from outrider.engine.call import ADMITTED, END, Call, Event, Listener, wake
from outrider.engine.engine import Engine
from outrider.errors import RequestError
from outrider.requests.request import Request
from outrider.requests.turn import Progress

Command = Callable[["EngineLoop"], None]
"""Work to do between two rounds."""


_ENDINGS: Final = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)
"""Exceptions with a meaning of their own for iterators and coroutines."""


def nothing(loop: EngineLoop) -> None:
    """Do nothing: a command that only wakes the thread."""


class EngineLoop:
    """Runs the rounds of an engine for its open calls.

    Args:
        engine: claimed while calls are open here.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine | None = engine
        """None after it was closed."""
        self.inbox: SimpleQueue[Command] = SimpleQueue()
        self.error: BaseException | None = None
        """What a round raised and no caller has received yet."""
        self.runner: int | None = None
        """The thread that is running a round."""
        self.began: float | None = None
        """When the round began that is running, by ``time.monotonic``; None between rounds."""
        self.torch_threads = torch.get_num_threads()
        """Torch's number of threads, which torch keeps per thread of the program."""
        self._outbox: list[tuple[Call, Event]] = []
        self._calls: dict[str, Call] = {}
        """The call of every request that has not ended."""

    @property
    def due(self) -> bool:
        """Whether there is a round to run."""
        return bool(self._calls) and self.error is None

    def turn(self, command: Command = nothing) -> list[Progress]:
        """Execute all commands, then run a round if one is due."""
        progress: list[Progress] = []
        self.runner, self.began = threading.get_ident(), time.monotonic()
        try:
            self._obey(command)
            if self.due:
                progress = self._round()
        finally:
            self.runner = self.began = None
        return progress

    def settle(self) -> None:
        """Execute all commands and send the events."""
        self._obey()
        send(self.take_events())

    def take_events(self) -> list[tuple[Call, Event]]:
        """Events to send; each is handed out once."""
        events, self._outbox = self._outbox, []
        return events

    def report_error(self) -> None:
        """Report the error of a round to every caller that waits."""
        if self.error is not None:
            self._obey()  # a caller that received the last error may have cancelled its cause
        waiting = [call for call in dict.fromkeys(self._calls.values()) if call.readers and not call.reported]
        if waiting and self.error is not None:
            for call in waiting:
                call.reported = True
                self._outbox.append((call, self.error))
                if call.ends_only:  # the caller wants all outputs or none
                    self.inbox.put(partial(EngineLoop.drop, call=call))
            self.error = None

    def admit(self, call: Call) -> None:
        """Queue the requests of a call, all or none."""
        engine = self.engine
        if call.dropped or engine is None:
            self._outbox.append((call, END))
            return
        try:
            engine.claim(self)
        except RequestError as error:
            call.open = 0
            self._outbox += [(call, error), (call, END)]
            return
        call.began(engine)
        try:
            for prompt, params in call.wishes:
                group: list[Request] = []
                call.groups.append(group)
                for choice in range(params.n):
                    seed = group[0].seed if group else None
                    group.append(engine.submit(prompt, params, choice=choice, seed=seed))
                    group[-1].times.queued = call.posted
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._outbox += [(call, error), (call, END)]
            self._cancel(engine, call)
            call.open = 0
            self._unclaim_if_idle(engine)
            return
        self._calls |= {request.id: call for request in call.requests}
        self._outbox.append((call, ADMITTED))
        if not call.open:
            self._outbox.append((call, END))
        self._unclaim_if_idle(engine)

    def drop(self, call: Call) -> None:
        """Cancel the open requests of a call."""
        if self.engine is not None:
            self._cancel(self.engine, call)
            self._unclaim_if_idle(self.engine)
            self.error = None  # this call may have caused it; if not, the next round raises it again

    def end(self) -> None:
        """End every call and let go of the engine."""
        open_calls, engine = dict.fromkeys(self._calls.values()), self.engine
        self.engine = None
        try:
            for call in open_calls:
                if engine is not None:
                    self._cancel(engine, call)
        finally:
            self._outbox += [(call, END) for call in open_calls]
            self._calls.clear()
            if engine is not None:
                engine.unclaim()

    def _unclaim_if_idle(self, engine: Engine) -> None:
        if not self._calls:
            engine.unclaim()

    def _obey(self, command: Command = nothing) -> None:
        while True:
            try:
                command(self)
            except BaseException as error:  # noqa: BLE001 - waiting callers get it
                self.error = error
            try:
                command = self.inbox.get_nowait()
            except Empty:
                return

    def _round(self) -> list[Progress]:
        assert self.engine is not None
        try:
            progress = self.engine.step()
            assert progress or not self.engine.idle, "somebody else ran this engine's rounds"
        except _ENDINGS as error:  # an iterator or coroutine that raised it would seem to end as it should
            self.error = RuntimeError(f"the round raised {type(error).__name__}")
            self.error.__cause__ = error
            return []
        except BaseException as error:  # noqa: BLE001 - waiting callers get it
            self.error = error
            return []
        self._deliver(progress)
        self._unclaim_if_idle(self.engine)
        return progress

    def _cancel(self, engine: Engine, call: Call) -> None:
        for request in call.requests:
            engine.cancel(request)
        self._deliver(engine.end_cancelled())

    def _deliver(self, progress: Sequence[Progress]) -> None:
        for item in progress:
            call = self._calls.get(item.request.id)
            if call is None:
                continue
            if item.finished:
                del self._calls[item.request.id]
            if call.note(item):
                self._outbox.append((call, item))
            if not call.open:
                self._outbox.append((call, END))


def run(reference: weakref.ref[EngineLoop], inbox: SimpleQueue[Command]) -> None:
    """Run an engine loop in its own thread, until it is closed or nobody refers to it.

    While it sleeps or sends events, the thread holds neither loop nor engine, so a model without references is freed.

    Args:
        reference: the loop.
        inbox: the loop's.
    """
    due = False
    while True:
        command = nothing if due else inbox.get()
        loop = reference()
        if loop is None:
            return
        _take_torch_threads(1 if loop.engine and loop.engine.own_threads else loop.torch_threads)
        loop.turn(command)
        loop.report_error()
        events, due, ended = loop.take_events(), loop.due, loop.engine is None
        command, loop = nothing, None
        send(events)
        if ended:
            return


def _take_torch_threads(count: int) -> None:
    """Give this thread its number of torch threads, and other threads the number that they had before.

    Torch keeps the last number that any thread set as the default of threads that are new to it.
    """
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
        other = threading.Thread(target=torch.set_num_threads, args=(before,), daemon=True)
        other.start()
        other.join()


def send(events: list[tuple[Call, Event]]) -> None:
    """Put every event into the queue of its call, and wake each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[Listener]] = {}
    while events:
        call, event = events.pop(0)
        call.put(event, loops)
    for loop, readers in loops.items():
        wake(loop, readers)
