"""A histogram for what happens hundreds of times a second: one list entry and one sum per observation.

The library's histogram takes a lock and three calls for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily


class Buckets:
    """Counts observations by size.  One thread observes; others may read.

    Args:
        bounds: upper bounds, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = tuple(map(float, bounds)), [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count an observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, text: str, labels: Sequence[str], values: Sequence[str]) -> HistogramMetricFamily:
        """The histogram as a scrape reads it.

        Args:
            name: of the metric.
            text: what it is.
            labels: names of its labels.
            values: the labels' values.
        """
        family, below, buckets = HistogramMetricFamily(name, text, labels=labels), 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts.copy(), strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(values, buckets, sum_value=self._sum)
        return family
