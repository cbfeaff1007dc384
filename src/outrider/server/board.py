"""The board: all figures of a running server, written on two threads and read by scrapes, the page and logs."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from outrider.server.desk import Desk
from outrider.server.metrics import Exposition, RequestMetrics, RoundTotals, ServerFacts, stats_of


class Board:
    """The figures of one server.

    Args:
        desk: whose requests are counted.
    """

    def __init__(self, desk: Desk) -> None:
        llm, target = desk.llm, desk.llm.engine.target
        self.totals = RoundTotals()
        """Written by the engine's thread."""
        self.requests = RequestMetrics(desk.names[0], target.context_length)
        """Written by the event loop."""
        self.facts = ServerFacts(
            model=desk.names[0],
            algorithm=desk.algorithm,
            verifier=llm.verifier.name,
            backend=target.backend,
            max_running=desk.max_running,
            version=version("outrider"),
            algorithms=tuple(desk.algorithms),
        )
        self._exposition = Exposition(self.facts, self.totals, self.requests)
        desk.watcher = self.requests
        llm.driver.between_rounds(self.totals.attach)

    def scrape(self) -> tuple[bytes, str]:
        """The answer to a scrape of metrics, and its content type."""
        return self._exposition.render()

    def stats(self) -> dict[str, Any]:
        """The totals since the start, as JSON values."""
        return stats_of(self.totals, self.facts)
