"""What runs an engine's rounds and tells every call what became of it: the part of a driver that touches the engine.

One thread does all of this.  Others put commands into the inbox, which never blocks whoever writes to it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

import torch

from outrider.engine.call import ADMITTED, END, Call, Letter
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.turn import Progress
from outrider.errors import RequestError

Command = Callable[["Rounds"], None]
"""Something to do between two rounds."""


def nothing(rounds: Rounds) -> None:
    """A command that only wakes the thread."""


class Rounds:
    """The open calls of an engine, and its next round.

    Args:
        engine: claimed while calls are open here.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Engine | None = engine
        """None once it was closed."""
        self.inbox: SimpleQueue[Command] = SimpleQueue()
        self.fault: BaseException | None = None
        """What a round raised and nobody was told yet."""
        self.runner: int | None = None
        """The thread that is inside a round."""
        self.torch_threads = torch.get_num_threads()
        """How many of torch's threads compute; each thread of the program has a number of its own."""
        self._outbox: list[tuple[Call, Letter]] = []
        self._calls: dict[str, Call] = {}
        """The call of every request that has not ended."""

    @property
    def due(self) -> bool:
        """Whether there is a round to run."""
        return bool(self._calls) and self.fault is None

    def turn(self, command: Command = nothing) -> list[Progress]:
        """Do what was asked for, then run a round if one is due."""
        progress: list[Progress] = []
        self.runner = threading.get_ident()
        try:
            self._obey(command)
            if self.due:
                progress = self._round()
        finally:
            self.runner = None
        return progress

    def settle(self) -> None:
        """Do what was asked for, and send the mail."""
        self._obey()
        send(self.letters())

    def letters(self) -> list[tuple[Call, Letter]]:
        """Mail that is to be sent, handed out once."""
        letters, self._outbox = self._outbox, []
        return letters

    def tell_fault(self) -> None:
        """Tell what a round raised to all who wait."""
        if self.fault is not None:
            self._obey()  # whoever was told the last one may have cancelled what raised
        waiting = [call for call in dict.fromkeys(self._calls.values()) if call.readers and not call.told]
        if waiting and self.fault is not None:
            for call in waiting:
                call.told = True
                self._outbox.append((call, self.fault))
                if call.ends_only:  # its caller wants all or nothing
                    self.inbox.put(partial(Rounds.drop, call=call))
            self.fault = None

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
        except BaseException as error:  # noqa: BLE001 - the caller is told
            self._cancel(engine, call)
            call.open = 0
            self._outbox += [(call, error), (call, END)]
            self._unclaim_if_idle(engine)
            return
        self._calls |= {request.id: call for request in call.requests}
        self._outbox.append((call, ADMITTED))
        if not call.open:
            self._outbox.append((call, END))
        self._unclaim_if_idle(engine)

    def drop(self, call: Call) -> None:
        """End what is open of a call."""
        if self.engine is not None:
            self._cancel(self.engine, call)
            self._unclaim_if_idle(self.engine)
            self.fault = None  # it may have been this call's doing; if not, the next round raises it again

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
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                self.fault = error
            try:
                command = self.inbox.get_nowait()
            except Empty:
                return

    def _round(self) -> list[Progress]:
        assert self.engine is not None
        try:
            progress = self.engine.step()
            assert progress or not self.engine.idle, "somebody else ran this engine's rounds"
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            self.fault = error
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


def run(reference: weakref.ref[Rounds], inbox: SimpleQueue[Command]) -> None:
    """What an engine's own thread does; it ends when the rounds are closed or nobody knows them any more.

    Asleep, and while it sends mail, it holds neither rounds nor engine: whoever reads the last letter and lets go of
    the model frees it.

    Args:
        reference: the rounds.
        inbox: theirs.
    """
    due = False
    while True:
        command = nothing if due else inbox.get()
        rounds = reference()
        if rounds is None:
            return
        if torch.get_num_threads() != rounds.torch_threads:
            torch.set_num_threads(rounds.torch_threads)
        rounds.turn(command)
        rounds.tell_fault()
        letters, due, ended = rounds.letters(), rounds.due, rounds.engine is None
        command, rounds = nothing, None
        send(letters)
        if ended:
            return


def send(letters: list[tuple[Call, Letter]]) -> None:
    """Put every letter into the mail of its call."""
    while letters:
        call, letter = letters.pop(0)
        call.put(letter)
