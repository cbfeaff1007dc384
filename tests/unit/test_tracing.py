"""Spans of requests: their stages and times, and what there is without OpenTelemetry."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.requests.stopping import FinishReason
from outrider.server.tracing import RequestTracer, make_tracer


@dataclass
class Times:
    queued: float
    admitted: float
    first_token: float
    ended: float


@dataclass
class Stand:
    """Stands for a request."""

    times: Times
    inputs: Sequence[int] = (1,) * 9
    prompt_length: int = 4
    finish_reason: FinishReason | None = FinishReason.STOP


@dataclass
class Noted:
    name: str
    context: Any
    start: int
    attributes: Mapping[str, Any]
    stop: int = 0

    def end(self, end_time: int | None = None) -> None:
        assert end_time is not None
        self.stop = end_time


@dataclass
class Notes:
    """Stands for OpenTelemetry's tracer."""

    made: list[Noted] = field(default_factory=list)

    def start_span(
        self, name: str, context: Any = None, *, attributes: Any = None, start_time: int | None = None
    ) -> Noted:
        assert start_time is not None
        self.made.append(Noted(name, context, start_time, attributes or {}))
        return self.made[-1]


def spans(*times: float) -> list[Noted]:
    """Spans of a request with times relative to now, 0 where it reached no such stage."""
    notes, now = Notes(), time.perf_counter()
    tracer = RequestTracer(notes, lambda headers: headers["traceparent"], lambda span: span.name, "small")
    tracer.ended(Stand(Times(*(now + each if each else 0.0 for each in times))), "req-1", {"traceparent": "caller"})
    return notes.made


def test_a_request_has_three_stages() -> None:
    whole, *stages = spans(-4.0, -3.0, -1.0, -0.5)
    assert (whole.name, whole.context) == ("llm_request", "caller")
    assert whole.attributes["gen_ai.usage.output_tokens"] == 5
    assert [(stage.name, stage.context) for stage in stages] == [
        ("queue", "llm_request"),
        ("prefill", "llm_request"),
        ("decode", "llm_request"),
    ]
    assert [(stage.stop - stage.start) / 1e9 for stage in stages] == pytest.approx([1.0, 2.0, 0.5], abs=0.1)
    assert (whole.stop - whole.start) / 1e9 == pytest.approx(3.5, abs=0.1)
    assert abs(whole.stop / 1e9 + 0.5 - time.time()) < 5.0


@pytest.mark.parametrize(
    ("times", "names"),
    [((-4.0, 0.0, 0.0, -1.0), ["queue"]), ((-4.0, -3.0, 0.0, -1.0), ["queue", "prefill"])],
    ids=["queued", "admitted"],
)
def test_stages_that_a_request_did_not_reach_are_left_out(times: tuple[float, ...], names: list[str]) -> None:
    whole, *stages = spans(*times)
    assert [stage.name for stage in stages] == names
    assert (stages[-1].stop - stages[0].start) / 1e9 == pytest.approx(3.0, abs=0.1)
    assert (whole.stop - whole.start) / 1e9 == pytest.approx(3.0, abs=0.1)


def test_an_endpoint_without_opentelemetry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match="install opentelemetry-sdk"):
        make_tracer("http://localhost:4318/v1/traces", "small")
