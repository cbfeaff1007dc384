"""The desk between HTTP and the engine: it admits requests, follows them, and drains."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, TypeVar

from outrider.engine.call import Call, RequestSpec
from outrider.engine.driver import Driver
from outrider.errors import ModelError, OutriderError, RequestError
from outrider.llm import LLM
from outrider.metrics import FEWEST_ONE_ROW_ROUNDS, RowCosts
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import Request
from outrider.requests.turn import Progress
from outrider.server.failures import Refusal, draining
from outrider.server.settings import ServerSettings
from outrider.server.wishes import Caller, tokenizer_of

_Result = TypeVar("_Result")
_LONGEST_RETRY: Final = 60
_NO_RETRY: Final = {"x-should-retry": "false"}
"""OpenAI's clients send a request again after 408, unless they are told that it would take as long once more."""
_NOBODY: Final = "nobody"
"""The tenant of those without a key: a salt of their own buys them no share of their own."""


class Lane(enum.Enum):
    """Where a piece of work is done, by what it takes."""

    QUICK = enum.auto()
    """Less than a thread takes to start: the event loop does it."""
    LONG = enum.auto()
    """Prompts to read and answers to write, megabytes of them."""
    GRAMMAR = enum.auto()
    """A grammar to compile, which may take a second; other work does not wait for it."""


_THREADS: Final = {Lane.LONG: 4, Lane.GRAMMAR: 2}


class Watcher(Protocol):
    """Is told on the event loop what becomes of requests."""

    def progressed(self, item: Progress) -> None:
        """A round gave a streaming request tokens, or ended it."""
        ...

    def ended(self, request: Request) -> None:
        """A request has ended."""
        ...


class _Unwatched:
    def progressed(self, item: Progress) -> None:
        """Nobody watches."""

    def ended(self, request: Request) -> None:
        """Nobody watches."""


class Ticket:
    """A call that was admitted, with a time limit.

    Args:
        driver: runs the call.
        call: the requests.
        seconds: they are given up after that.
    """

    def __init__(self, driver: Driver, call: Call, seconds: float) -> None:
        self.call, self._driver = call, driver
        self._reason: Refusal | None = None
        late = f"the request took longer than {seconds:g} seconds and was given up"
        refusal = Refusal(408, late, code="timeout", headers=_NO_RETRY)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.give_up, refusal)

    async def progress(self) -> AsyncIterator[Progress]:
        """What becomes of the call, round by round, to its end.

        Raises:
            Refusal: it took too long, or the server ends.
        """
        while True:
            item = await _harmless(self._driver.awaited(self.call))
            if item is None:
                break
            yield item
        if self._reason is not None:
            raise self._reason

    def close(self) -> None:
        """Cancel what is open."""
        self._timer.cancel()
        self._driver.cancel(self.call)

    def give_up(self, reason: Refusal) -> None:
        """Cancel what is open, and tell the client why."""
        self._reason = reason
        self._driver.cancel(self.call)


def _names(given: str) -> tuple[str, ...]:
    """What clients may call a model: its hub id, or its file's or folder's name, which says nothing of where it is."""
    name = Path(os.path.abspath(given)).name  # noqa: PTH100 - "." has no name, and links keep their own
    return (name,) if Path(given).exists() or given.count("/") != 1 else (given, name)


def _fingerprint(llm: LLM) -> str:
    target = llm.engine.target
    facts = (version("outrider"), llm.name, target.backend, str(target.device), llm.verifier.name)
    return "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


async def _harmless(work: Awaitable[_Result]) -> _Result:
    """Wait for the engine; what a round raised ends the request, and not the event loop."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        raise RuntimeError(f"the round raised {type(error).__name__}") from error


class Desk:
    """Admits requests to one model.

    Args:
        llm: the model; only its driver's thread touches the engine.
        settings: limits.
    """

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        self.llm, self.settings = llm, settings
        if llm.tokenizer is not None:
            llm.tokenizer.literal_text.prepare()  # a second in which nobody else would be answered
            llm.tokenizer.grammars.prepare()
        self.names = settings.served_names or _names(llm.name)
        """Names of the model for clients."""
        self._place = llm.name if os.sep in llm.name else self.names[0]
        """What errors must not say; a bare name tells no place, and may be part of any word."""
        self.algorithm = llm.drafter_config.method
        """The server's own drafting method."""
        self.algorithms = llm.engine.drafting.methods
        """All that are loaded."""
        self.max_running = llm.engine.scheduler.max_running
        self.watcher: Watcher = _Unwatched()
        self.draining = False
        self._held: Counter[str] = Counter()
        """Requests that have not ended, by tenant."""
        self.since = int(time.time())
        self.fingerprint = _fingerprint(llm)
        """Equal seeds give equal texts as long as it is the same."""
        self._threads = {
            lane: ThreadPoolExecutor(count, thread_name_prefix=f"outrider-{lane.name.lower()}")
            for lane, count in _THREADS.items()
        }
        self._tickets: set[Ticket] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._mean_seconds = 1.0

    def close(self) -> None:
        """Forget the work that has not begun; what runs in a thread is left to end by itself."""
        for pool in self._threads.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], _Result], lane: Lane) -> _Result:
        """Do what reads a request or writes an answer, in a thread unless it is quick.

        Whoever calls it holds a place (:meth:`admitted`), so that only as much work waits as there are places.

        Args:
            work: does it.
            lane: where it is done.

        Raises:
            OutriderError: it cannot be served; clients are not told the model's place on this machine.
        """
        try:
            if lane is Lane.QUICK:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._threads[lane], work)
        except OutriderError as error:
            kind = RequestError if isinstance(error, ModelError) else type(error)  # such as: no chat template
            told = str(error).replace(self._place, self.names[0])
            raise kind(told, param=error.param, code=error.code) from error

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; None is whichever is.

        Raises:
            Refusal: listing the names that there are.
        """
        if name is not None and name not in self.names:
            told = f"there is no model {name[:100]!r} here; there is: {', '.join(self.names)}"
            raise Refusal(404, told, "model", "model_not_found")

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            Refusal: it has none.
        """
        return tokenizer_of(self.llm)

    @property
    def one_row_seconds(self) -> float | None:
        """Seconds of a pass with one row, as the latest rounds measured it; None before there were enough."""
        latest = self.llm.engine.seconds.by_rows.latest.copy()  # one step, which the engine's thread cannot divide
        return RowCosts(latest=latest).one_row if len(latest) >= FEWEST_ONE_ROW_ROUNDS else None

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        return self._held.total()

    def _check_room(self, count: int, tenant: str | None) -> None:
        """Refuse requests that cannot be admitted now.

        A full server still admits tenants up to equal shares of its places: others cannot keep them out.

        Args:
            count: how many requests.
            tenant: the owner of their key.

        Raises:
            Refusal: the server drains, or too many wait.
        """
        if self.draining:
            raise draining()
        most = self.max_running + self.settings.max_waiting
        if count > most:
            raise Refusal(400, f"the request asks for {count} outputs, and {most} may be open; ask for fewer")
        share = math.ceil(most / max(1, len(self.settings.api_keys)))
        if self.open + count > most and self._held[tenant or _NOBODY] + count > share:
            waits = math.ceil(self._mean_seconds * max(1.0, self.open / self.max_running))
            told = f"{self.open} requests are open, and {most} may be; try again later"
            raise Refusal(
                429, told, code="queue_full", headers={"Retry-After": str(min(_LONGEST_RETRY, max(1, waits)))}
            )

    @contextmanager
    def admitted(self, count: int, tenant: str | None) -> Iterator[None]:
        """Hold places for requests, from before their prompts are read until they have ended.

        Args:
            count: how many requests.
            tenant: the owner of their key.

        Raises:
            Refusal: the server drains, or too many wait.
        """
        self._check_room(count, tenant)
        holder = tenant or _NOBODY
        self._held[holder] += count
        self._empty.clear()
        try:
            yield
        finally:
            self._held[holder] -= count
            if not self.open:
                self._empty.set()

    @asynccontextmanager
    async def called(
        self, wishes: Sequence[RequestSpec], *, ends_only: bool, seconds: float | None
    ) -> AsyncIterator[Ticket]:
        """Queue completions that hold places; whatever of them is open when the block ends is cancelled.

        Args:
            wishes: prompts and parameters.
            ends_only: whether nothing is wanted before an output has ended.
            seconds: time for all of them, of the client's; the server's own bound holds beside it.

        Raises:
            OutriderError: the engine refuses them.
        """
        began = time.perf_counter()
        call = await _harmless(self.llm.driver.asubmit(wishes, ends_only=ends_only))
        ticket = Ticket(self.llm.driver, call, min(self.settings.request_seconds, seconds or math.inf))
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)
            ticket.close()
            self._mean_seconds += 0.1 * (time.perf_counter() - began - self._mean_seconds)

    def drain(self) -> None:
        """Admit nothing more."""
        self.draining = True

    def give_up(self) -> None:
        """Cancel all requests; their clients are told that the server ends."""
        for ticket in self._tickets:
            ticket.give_up(draining())

    async def drained(self) -> None:
        """Wait until no request is open."""
        await self._empty.wait()

    def caller(self, tenant: str | None, wished: str | None) -> Caller:
        """Whose request it is, with a cache salt that keeps tenants apart unless they share.

        Args:
            tenant: the owner of its key.
            wished: the salt that it asks for.
        """
        alone = len(self.settings.api_keys) < 2
        parts = [None if self.settings.share_cache else tenant, wished]
        if parts == [None, None]:
            return Caller(tenant or _NOBODY, None, alone)
        return Caller(tenant or _NOBODY, hashlib.sha256(repr(parts).encode()).hexdigest(), alone)
