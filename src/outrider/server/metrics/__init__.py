"""Metrics of the server: what the engine and the front end did, for Prometheus, ``/stats`` and logs.

:class:`RoundTotals` counts on the engine's thread, :class:`RequestMetrics` on the event loop; :class:`Exposition` and
:func:`stats_of` read both when somebody asks.
"""

from outrider.server.metrics.exposition import Exposition
from outrider.server.metrics.facts import ServerFacts
from outrider.server.metrics.requests import RequestMetrics
from outrider.server.metrics.rounds import RecentFigures, RoundFigures, RoundTotals
from outrider.server.metrics.stats import stats_of

__all__ = [
    "Exposition",
    "RecentFigures",
    "RequestMetrics",
    "RoundFigures",
    "RoundTotals",
    "ServerFacts",
    "stats_of",
]
