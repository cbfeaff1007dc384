"""Interrupts a drafter that does not return: one thread looks at what every engine is doing, from time to time.

The watched thread only counts its calls, so watching costs it nothing that could be measured.  The handshake:

    watched thread                        watcher
    busy = number of the call             looking = True
    … the drafter …                       busy is what it was long ago → raise in that thread, late = that call
    busy = 0                              looking = False
    wait until not looking
    late? take back what was not raised yet

After ``busy = 0`` a look that begins raises nothing, and one that had begun is waited for.  So nothing can be raised
outside the watched call.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple, Unpack
from weakref import WeakSet

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")
_LOOKS: Final = 4
"""Looks per time bound: a call is interrupted after at most 1 + 2/4 of it."""
_RAISE: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_RAISE.argtypes, _RAISE.restype = (ctypes.c_ulong, ctypes.py_object), ctypes.c_int


_NOTHING: Final = ctypes.py_object()
"""The null pointer, which takes an exception back that was not raised yet."""


class DraftTimeoutError(TimeoutError):
    """A drafter did not return in time."""


class _Interruption(BaseException):
    """Raised inside a drafter that does not return; no Exception, so that drafters do not catch it."""


class Watchdog:
    """Bounds the time of calls that one thread at a time makes.

    A call is interrupted between two Python instructions: one that waits inside a library is interrupted when the
    library returns.

    Args:
        seconds: time bound; 0 is none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls = self._busy = self._runner = 0
        self._looking, self._late = False, 0
        self._seen, self._since = 0, 0.0

    def call(self, work: Callable[[Unpack[_Arguments]], _Result], *arguments: *_Arguments) -> _Result:
        """Call a function.

        Raises:
            DraftTimeoutError: it did not return in time.
            BaseException: whatever the function raises.
        """
        if not self.seconds:
            return work(*arguments)
        if not self._calls:
            WATCHER.add(self)
        try:
            try:
                self._calls += 1
                self._runner, self._busy = threading.get_ident(), self._calls
                return work(*arguments)
            finally:
                self._leave()
        except _Interruption:
            self._leave()  # it may have been raised while leaving
            raise DraftTimeoutError(f"it did not return within {self.seconds:g} s") from None

    def _leave(self) -> None:
        self._busy = 0
        while self._looking:
            time.sleep(0.0)
        if self._late:
            _RAISE(self._runner, _NOTHING)
            self._late = 0

    def look(self, now: float) -> None:
        """Interrupt the call that has run for too long; called by the watcher.

        Args:
            now: the monotonic time.
        """
        self._looking = True
        try:
            busy = self._busy
            if busy != self._seen:
                self._seen, self._since = busy, now
            elif busy and now - self._since >= self.seconds:
                self._late, self._since = busy, now  # and once more after the same time, if it was swallowed
                _RAISE(self._runner, _Interruption)
        finally:
            self._looking = False


class _Watcher:
    """The thread that looks; it ends when nothing is left to watch."""

    def __init__(self) -> None:
        self._dogs: WeakSet[Watchdog] = WeakSet()
        self._gate = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, dog: Watchdog) -> None:
        """Watch from now on, as long as the watchdog lives."""
        with self._gate:
            self._dogs.add(dog)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="outrider-watchdog", daemon=True)
                self._thread.start()
        self._changed.set()

    def _run(self) -> None:
        pause = 0.0
        while True:
            self._changed.wait(pause)
            self._changed.clear()
            with self._gate:
                dogs = list(self._dogs)
                if not dogs:
                    self._thread = None
                    return
            pause, now = min(dog.seconds for dog in dogs) / _LOOKS, time.monotonic()
            for dog in dogs:
                dog.look(now)
            del dogs, dog


WATCHER: Final = _Watcher()
