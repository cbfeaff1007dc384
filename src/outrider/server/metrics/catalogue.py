"""Every metric that is read off the engine and the front end when somebody asks: name, sentence, labels, values.

The names are vLLM's where it has one, so its dashboards and alerts work; the others begin with ``outrider:``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from outrider.requests.stopping import FinishReason
from outrider.server.metrics.facts import ServerFacts
from outrider.server.metrics.requests import RequestMetrics
from outrider.server.metrics.rounds import Load, RecentFigures, RoundFigures, bucket_bound
from outrider.server.metrics.state import EngineState


class Reading(NamedTuple):
    """Everything that one answer to a scrape is made of."""

    facts: ServerFacts
    figures: RoundFigures
    recent: RecentFigures
    state: EngineState
    one_row_seconds: float | None
    requests: RequestMetrics


Values = Iterator[tuple[Sequence[str], float]]
"""Label values, and the number."""


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """Without the suffix ``_total`` of a counter."""
    text: str
    """One sentence."""
    read: Callable[[Reading], Values]
    """Its values."""
    labels: tuple[str, ...] = ()
    """Labels besides the model's name."""
    counter: bool = True
    """Whether it only grows; otherwise a gauge."""


def _one(read: Callable[[Reading], float | None]) -> Callable[[Reading], Values]:
    """A metric without labels; None has no sample."""

    def values(reading: Reading) -> Values:
        value = read(reading)
        if value is not None:
            yield (), value

    return values


def _by_position(read: Callable[[RoundFigures], Sequence[int]]) -> Callable[[Reading], Values]:
    def values(reading: Reading) -> Values:
        for position, count in enumerate(read(reading.figures)):
            yield (str(position),), count

    return values


def _by_name(read: Callable[[Reading], Mapping[str, float]]) -> Callable[[Reading], Values]:
    def values(reading: Reading) -> Values:
        for name, count in read(reading).items():
            yield (name,), count

    return values


def _by_load(read: Callable[[Load], int]) -> Callable[[Reading], Values]:
    def values(reading: Reading) -> Values:
        for place, load in enumerate(reading.figures.loads):
            yield (str(bucket_bound(place)),), read(load)

    return values


def _by_bound(read: Callable[[RecentFigures], Mapping[int, float]]) -> Callable[[Reading], Values]:
    def values(reading: Reading) -> Values:
        for bound, mean in read(reading.recent).items():
            yield (str(bound),), mean

    return values


def _ended(reading: Reading) -> Values:
    """Requests by reason, those of which there was none included, so that rates start at 0."""
    for reason in FinishReason:
        yield (_VLLM_REASONS.get(reason, reason.value),), reading.state.ended.get(reason, 0)


def _answers(reading: Reading) -> Values:
    for (method, route, status), count in dict(reading.requests.answers).items():
        yield (method, route, str(status)), count


def _build(reading: Reading) -> Values:
    facts = reading.facts
    yield (facts.version, platform.python_version(), facts.backend, facts.algorithm, facts.verifier), 1


_VLLM_REASONS: Final = {FinishReason.CANCELLED: "abort"}
"""Finish reasons that vLLM calls by another name."""
_POSITION: Final = ("position",)
_RUNNING: Final = ("running",)

GAUGES: Final = (
    Metric("vllm:num_requests_running", "Requests in decoding or prefill.", _one(lambda r: r.state.running)),
    Metric("vllm:num_requests_waiting", "Requests in the queue.", _one(lambda r: r.state.waiting)),
    Metric(
        "vllm:kv_cache_usage_perc",
        "Share of the target's KV cache pages that requests own, from 0 to 1.",
        _one(lambda r: r.state.kv_use),
    ),
    Metric(
        "vllm:gpu_cache_usage_perc",
        "The same as vllm:kv_cache_usage_perc, under the older name.",
        _one(lambda r: r.state.kv_use),
    ),
    Metric(
        "outrider:max_running_requests",
        "Most requests that may run side by side.",
        _one(lambda r: r.facts.max_running),
    ),
    Metric(
        "outrider:acceptance_rate",
        "Accepted ÷ tested draft tokens of the last minute; no sample while nothing is tested.",
        _one(lambda r: r.recent.acceptance_rate),
    ),
    Metric(
        "outrider:accepted_length",
        "Tokens per decoding round of a request in the last minute, the bonus token included; plain decoding has 1.",
        _one(lambda r: r.recent.accepted_length),
    ),
    Metric(
        "outrider:estimated_speedup",
        "Estimated speedup over plain decoding in the last minute; no sample while plain rounds were not measured.",
        _one(lambda r: r.recent.speedup),
    ),
    Metric(
        "outrider:one_row_seconds",
        "Median seconds of the latest rounds with one row, which are plain rounds of one request.",
        _one(lambda r: r.one_row_seconds),
    ),
    Metric(
        "outrider:draft_budget",
        "Draft rows granted per request and round in the last minute, by running requests (the bucket's upper bound).",
        _by_bound(lambda recent: recent.budget),
        _RUNNING,
    ),
    Metric(
        "outrider:build_info",
        "Always 1; the labels say what runs.",
        _build,
        ("version", "python", "backend", "algorithm", "verifier"),
    ),
)
COUNTERS: Final = (
    Metric(
        "vllm:prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        _one(lambda r: r.figures.prompt_tokens if r.state.shares else 0),
    ),
    Metric(
        "vllm:prefix_cache_hits",
        "Prompt tokens that came from the prefix cache.",
        _one(lambda r: r.figures.cached_tokens),
    ),
    Metric(
        "vllm:num_preemptions",
        "How often a running request gave its pages back and was computed again later.",
        _one(lambda r: r.state.preemptions),
    ),
    Metric(
        "vllm:prompt_tokens",
        "Tokens of prompts that were computed to their end, cached ones included.",
        _one(lambda r: r.figures.prompt_tokens),
    ),
    Metric("vllm:generation_tokens", "Emitted tokens.", _one(lambda r: r.figures.emitted)),
    Metric(
        "vllm:request_success",
        "Ended requests by reason: stop, length, abort (cancelled) or error.",
        _ended,
        ("finished_reason",),
    ),
    Metric(
        "vllm:spec_decode_num_drafts",
        "Drafts: rounds of a request in which its drafter proposed something.",
        _one(lambda r: r.figures.drafts),
    ),
    Metric(
        "vllm:spec_decode_num_draft_tokens",
        "Draft tokens, tested or not.",
        _one(lambda r: sum(r.figures.drafted)),
    ),
    Metric(
        "vllm:spec_decode_num_accepted_tokens",
        "Accepted draft tokens, bonus tokens left out.",
        _one(lambda r: sum(r.figures.accepted)),
    ),
    Metric(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by position in the draft, from 0.",
        _by_position(lambda f: f.accepted),
        _POSITION,
    ),
    Metric(
        "outrider:spec_decode_num_tested_tokens_per_pos",
        "Drafts that were tested at a position, from 0: the denominator of the acceptance rate there.",
        _by_position(lambda f: f.tested),
        _POSITION,
    ),
    Metric(
        "outrider:spec_decode_num_draft_tokens_per_pos",
        "Draft tokens by position in the draft, from 0; a tree has several at one position.",
        _by_position(lambda f: f.drafted),
        _POSITION,
    ),
    Metric("outrider:rounds", "Rounds, each one forward pass of the target.", _one(lambda r: r.figures.passes)),
    Metric(
        "outrider:decode_turns",
        "Decoding rounds, counted once for each request in them. Plain decoding needs one per token.",
        _one(lambda r: r.figures.turns),
    ),
    Metric(
        "outrider:decode_tokens",
        "Emitted tokens of decoding rounds; those of a prompt's own pass are left out.",
        _one(lambda r: r.figures.decoded),
    ),
    Metric(
        "outrider:rows",
        "Rows of forward passes by kind: prompt, decode, draft (accepted) and wasted (rejected drafts).",
        _by_name(lambda r: vars(r.figures.rows)),
        ("kind",),
    ),
    Metric(
        "outrider:stage_seconds",
        "Seconds by stage: rounds of prompts only (prefill), mixed rounds, and the draft, verify and other time of "
        "rounds that only decode.",
        _by_name(lambda r: r.figures.seconds._asdict()),
        ("stage",),
    ),
    Metric(
        "outrider:draft_turns",
        "Decoding rounds of requests by running requests (the bucket's upper bound): the denominator of draft budgets.",
        _by_load(lambda load: load.turns),
        _RUNNING,
    ),
    Metric(
        "outrider:draft_rows_granted",
        "Draft rows that the controller granted, by running requests (the bucket's upper bound).",
        _by_load(lambda load: load.granted),
        _RUNNING,
    ),
    Metric(
        "outrider:draft_rows_used",
        "Draft rows that were verified, by running requests (the bucket's upper bound).",
        _by_load(lambda load: load.drafted),
        _RUNNING,
    ),
    Metric(
        "outrider:measured_decode_seconds",
        "Seconds of decoding rounds for whose requests the time of a plain round is known.",
        _one(lambda r: r.figures.spent),
    ),
    Metric(
        "outrider:estimated_plain_decode_seconds",
        "Estimated seconds of plain decoding for the tokens of the same rounds.",
        _one(lambda r: r.figures.plain),
    ),
    Metric(
        "outrider:drafting_switched_off",
        "Requests whose drafting ended: the drafter raised, drafted what is invalid, or did not return.",
        _by_name(lambda r: r.state.switched_off),
        ("reason",),
    ),
    Metric(
        "outrider:refused_requests",
        "Requests that were refused before they reached the engine, by the error's code.",
        _by_name(lambda r: dict(r.requests.refusals)),
        ("code",),
    ),
    Metric(
        "outrider:http_requests",
        "HTTP requests by method, route and status.",
        _answers,
        ("method", "route", "status"),
    ),
)
"""Counters, without the suffix ``_total`` that the exposition adds."""
