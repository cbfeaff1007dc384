"""The answer to ``GET /metrics``: all metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from outrider.server.metrics.catalogue import COUNTERS, GAUGES, Metric, Reading
from outrider.server.metrics.facts import ServerFacts
from outrider.server.metrics.requests import MODEL, RequestMetrics
from outrider.server.metrics.rounds import TOKEN_BOUNDS, RoundFigures, RoundTotals
from outrider.server.metrics.state import state_of


class Exposition(Collector):
    """Makes the answer to a scrape, from figures that are read then.

    Args:
        facts: what is served; assign new facts when they change.
        totals: counts the engine's rounds.
        requests: counts on the event loop.
    """

    def __init__(self, facts: ServerFacts, totals: RoundTotals, requests: RequestMetrics) -> None:
        self.facts, self._totals, self._requests = facts, totals, requests
        # Its own registry: the global one belongs to whoever embeds the server.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> tuple[bytes, str]:
        """The answer and its content type, whatever the scraper would accept.

        It is always the text format, which every scraper reads.  In the OpenMetrics format the library may write
        ``vllm_`` for ``vllm:``, and dashboards would find nothing.
        """
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Family]:
        """All metrics with their present values."""
        reading = self.reading()
        for metric in GAUGES:
            yield _filled(GaugeMetricFamily(metric.name, metric.text, labels=[MODEL, *metric.labels]), metric, reading)
        for metric in COUNTERS:
            yield _filled(
                CounterMetricFamily(metric.name, metric.text, labels=[MODEL, *metric.labels]), metric, reading
            )
        yield _tokens_per_round(self.facts.model, reading.figures)
        for name, text in _GAPS.items():
            yield self._requests.gaps.family(name, text, [MODEL], [self.facts.model])
        for histogram in self._requests.histograms:
            for family in histogram.collect():
                # When each histogram was made is the same moment for all: the server's start.
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                yield family

    def describe(self) -> Iterator[Family]:
        """Nothing: whoever registers one reads no engine."""
        return iter(())

    def reading(self) -> Reading:
        """All figures, as they are now."""
        totals = self._totals
        state = state_of(totals.engine)
        return Reading(self.facts, totals.figures, totals.recent(), state, totals.one_row_seconds, self._requests)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, metric: Metric, reading: Reading
) -> GaugeMetricFamily | CounterMetricFamily:
    for labels, value in metric.read(reading):
        family.add_metric([reading.facts.model, *labels], value)
    return family


_GAPS: Final = {
    "vllm:inter_token_latency_seconds": "Seconds between two chunks of a request's tokens; a chunk holds all tokens of "
    "a round and counts once.",
    "vllm:time_per_output_token_seconds": "The same as vllm:inter_token_latency_seconds, under the older name.",
}
TOKENS_PER_ROUND: Final = "vllm:iteration_tokens_total"


def _tokens_per_round(model: str, figures: RoundFigures) -> HistogramMetricFamily:
    family = HistogramMetricFamily(TOKENS_PER_ROUND, "Prompt rows and emitted tokens of a round.", labels=[MODEL])
    buckets, below = [], 0
    for bound, count in zip((*map(float, TOKEN_BOUNDS), None), figures.tokens_per_round, strict=True):
        below += count
        buckets.append(("+Inf" if bound is None else f"{bound:.1f}", below))
    family.add_metric([model], buckets, sum_value=figures.tokens_of_rounds)
    return family
