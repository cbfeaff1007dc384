"""The board: all figures of a running server, written on two threads and read by scrapes, the page and logs."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from outrider.engine.engine import Engine
from outrider.requests.request import Request
from outrider.requests.turn import Progress
from outrider.server.desk import Desk
from outrider.server.metrics import Exposition, RequestMetrics, RequestTimes, RoundTotals, ServerFacts, stats_of


class Board:
    """Counts what the engine and the front end do.

    Args:
        desk: whose requests are counted.
    """

    def __init__(self, desk: Desk) -> None:
        llm = desk.llm
        target = llm.engine.target
        self.totals, self.requests = RoundTotals(), RequestMetrics(desk.names[0], target.context_length)
        self.facts = ServerFacts(
            model=desk.names[0],
            algorithm=desk.algorithm,
            verifier=llm.verifier.name,
            backend=target.backend,
            max_running=desk.max_running,
            version=version("outrider"),
        )
        self._exposition = Exposition(self.facts, self.totals, self.requests)
        self._times: dict[str, RequestTimes] = {}
        llm.driver.between_rounds(self._attach)

    def _attach(self, engine: Engine) -> None:
        self.totals.attach(engine)

    def progressed(self, item: Progress) -> None:
        """A round gave a streaming request tokens, or ended it."""
        self._times_of(item.request).chunk(len(item.tokens))

    def ended(self, request: Request) -> None:
        """A request has ended."""
        times = self._times.pop(request.id, None) or self.requests.begin(request.times.queued)
        assert request.finish_reason is not None
        times.end(request.finish_reason, request.prompt_length, self.totals.started(request))

    def _times_of(self, request: Request) -> RequestTimes:
        times = self._times.get(request.id)
        if times is None:
            times = self._times[request.id] = self.requests.begin(request.times.queued)
        return times

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The answer to a scrape of metrics, and its content type."""
        return self._exposition.render(accept)

    def stats(self) -> dict[str, Any]:
        """The totals since the start, as JSON values."""
        return stats_of(self.totals, self.facts)
