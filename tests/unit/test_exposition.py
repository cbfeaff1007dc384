"""The answer to a scrape: names, labels, values, and that it belongs to nobody else's registry."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from tiny import tiny_model

from outrider import LLM, SamplingParams
from outrider.requests.stopping import FinishReason
from outrider.server.metrics import Exposition, RequestMetrics, RoundTotals, ServerFacts

FACTS = ServerFacts("small", "ngram", "coupled", "hf", 8, "1.2.3")
REPEATED = [5, 6, 7, 8] * 6
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
VLLM = {
    *(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"),
    *("vllm:time_per_output_token_seconds_sum", "vllm:e2e_request_latency_seconds_count"),
    *("vllm:request_queue_time_seconds_bucket", "vllm:request_prompt_tokens_bucket"),
    *("vllm:request_generation_tokens_bucket", "vllm:iteration_tokens_total_bucket"),
    *("vllm:request_time_per_output_token_seconds_bucket", "vllm:iteration_tokens_total_sum"),
    *("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total"),
    *("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
}


@dataclass(frozen=True)
class Times:
    queued: float = 100.0
    admitted: float = 100.4
    first_token: float = 100.5
    ended: float = 100.61


@dataclass(eq=False)
class Stand:
    """Stands for a request: 24 prompt tokens and 9 of output."""

    times: Times = Times()
    inputs: Sequence[int] = (1,) * 33
    prompt_length: int = 24
    finish_reason: FinishReason | None = FinishReason.STOP


class Given(NamedTuple):
    """Stands for what a round gave it."""

    request: Stand
    tokens: Sequence[int]


class Served:
    """A tiny model that has completed two requests, and a front end that has seen them."""

    def __init__(self, prefix_cache: bool = False) -> None:
        self.now = 100.0
        self.llm = LLM.from_model(tiny_model(), speculation="ngram", cache={"prefix_cache": prefix_cache})
        self.totals, self.requests = RoundTotals(), RequestMetrics("small", 512, lambda: self.now)
        self.llm.driver.between_rounds(self.totals.attach)
        self.exposition = Exposition(FACTS, self.totals, self.requests)

    def work(self) -> None:
        self.llm.generate([REPEATED, REPEATED[:9]], SamplingParams(max_tokens=30, ignore_eos=True))
        streaming = Stand()
        for seconds, tokens in ((0.5, 1), (0.03, 4), (0.05, 0), (0.03, 4)):
            self.now += seconds
            self.requests.progressed(Given(streaming, (7,) * tokens))
        self.requests.ended(streaming)
        self.requests.answered("POST", "/v1/completions", 200)
        self.requests.answered("POST", "/v1/completions", 200)
        self.requests.answered("GET", "/metrics", 200)
        self.requests.refused("queue_full")

    def samples(self) -> Samples:
        text, kind = self.exposition.render()
        assert kind.startswith("text/plain")
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name, frozenset((labels | {"model_name": "small"}).items())]


@pytest.fixture(scope="module")
def served() -> Served:
    made = Served()
    made.work()
    return made


def test_the_names_are_those_of_vllm(served: Served) -> None:
    names = {name for name, _ in served.samples()}
    assert names >= VLLM
    assert {name.partition(":")[0] for name in names} == {"vllm", "outrider"}


def test_every_sample_names_the_model(served: Served) -> None:
    assert all(("model_name", "small") in labels for _, labels in served.samples())


def test_figures_are_those_of_the_engine(served: Served) -> None:
    figures, value = served.totals.figures, served.value
    assert figures.accepted, "nothing was accepted"
    assert value("vllm:generation_tokens_total") == 60
    assert value("vllm:prompt_tokens_total") == 33
    assert value("vllm:request_success_total", finished_reason="length") == 2
    assert value("vllm:request_success_total", finished_reason="abort") == 0
    assert value("vllm:spec_decode_num_drafts_total") == figures.drafts
    assert value("vllm:spec_decode_num_draft_tokens_total") == sum(figures.drafted)
    assert value("vllm:spec_decode_num_accepted_tokens_total") == sum(figures.accepted)
    for position, (tested, accepted) in enumerate(zip(figures.tested, figures.accepted, strict=False)):
        place = {"position": str(position)}
        assert value("vllm:spec_decode_num_accepted_tokens_per_pos_total", **place) == accepted
        assert value("outrider:spec_decode_num_tested_tokens_per_pos_total", **place) == tested
    assert value("outrider:rows_total", kind="wasted") == figures.rows.wasted
    assert value("outrider:stage_seconds_total", stage="verify") == pytest.approx(figures.seconds.verify)
    assert value("outrider:acceptance_rate") == pytest.approx(sum(figures.accepted) / sum(figures.tested))
    assert value("outrider:max_running_requests") == 8
    assert value("vllm:iteration_tokens_total_bucket", le="+Inf") == figures.passes
    assert value("vllm:iteration_tokens_total_count") == figures.passes
    assert value("vllm:iteration_tokens_total_sum") == 60 + 33


@pytest.mark.parametrize("shares", [True, False])
def test_the_prefix_cache_is_asked_only_where_there_is_one(shares: bool) -> None:
    served = Served(prefix_cache=shares)
    for _ in range(2):
        served.llm.generate([REPEATED], SamplingParams(max_tokens=1))
    assert served.value("vllm:prefix_cache_queries_total") == (48 if shares else 0)
    assert served.value("vllm:prefix_cache_hits_total") == (16 if shares else 0)
    assert served.value("vllm:prompt_tokens_total") == 48


def test_budgets_are_told_by_load(served: Served) -> None:
    loads = served.totals.figures.loads
    assert any(load.granted > load.drafted > 0 for load in loads)
    for place, load in enumerate(loads):
        running = {"running": str(2**place)}
        assert served.value("outrider:draft_turns_total", **running) == load.turns
        assert served.value("outrider:draft_rows_granted_total", **running) == load.granted
        assert served.value("outrider:draft_rows_used_total", **running) == load.drafted


def test_latencies_are_those_of_the_front_end(served: Served) -> None:
    value = served.value
    assert value("vllm:time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value("vllm:request_queue_time_seconds_sum") == pytest.approx(0.4)
    assert value("vllm:inter_token_latency_seconds_count") == 2
    assert value("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.11)
    assert value("vllm:time_per_output_token_seconds_sum") == pytest.approx(0.11)
    assert value("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.11 / 8)
    assert value("vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.61)
    assert value("vllm:request_prompt_tokens_sum") == 24
    assert value("vllm:request_generation_tokens_sum") == 9


def test_answers_and_refusals_are_counted(served: Served) -> None:
    value = served.value
    assert value("outrider:http_requests_total", method="POST", route="/v1/completions", status="200") == 2
    assert value("outrider:refused_requests_total", code="queue_full") == 1


def test_headers_name_the_metrics_as_samples_do(served: Served) -> None:
    text, kind = served.exposition.render()
    assert kind.startswith("text/plain; version=0.0.4")
    named = set(re.findall(r"^# TYPE (\S+) ", text.decode(), re.M))
    suffixes = re.compile(r"_(bucket|sum|count)$")
    assert {name if name in named else suffixes.sub("", name) for name, _ in served.samples()} <= named


def test_families_have_a_sentence_and_appear_once() -> None:
    families = list(Served().exposition.collect())
    assert [family.name for family in families if not family.documentation.endswith(".")] == []
    assert len({family.name for family in families}) == len(families) > 40


def test_a_new_server_answers_and_has_no_rates() -> None:
    names = {name for name, _ in Served().samples()}
    assert "vllm:num_requests_running" in names
    assert "outrider:acceptance_rate" not in names
    assert "outrider:estimated_speedup" not in names


def test_the_global_registry_is_left_alone() -> None:
    before = {family.name for family in REGISTRY.collect()}
    made, other = Served(), Served()
    made.exposition.render()
    other.exposition.render()
    assert {family.name for family in REGISTRY.collect()} == before


def test_new_facts_show_in_the_next_answer() -> None:
    served = Served()
    build = {"version": "1.2.3", "backend": "hf", "verifier": "coupled"}
    served.exposition.facts = replace(FACTS, algorithm="suffix")
    labels = next(dict(labels) for name, labels in served.samples() if name == "outrider:build_info")
    assert labels["algorithm"] == "suffix"
    assert labels.items() >= build.items()


def test_a_request_that_does_not_stream_counts_its_first_token_at_its_end() -> None:
    served = Served()
    served.requests.ended(Stand())
    assert served.value("vllm:time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert served.value("vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.61)
    assert served.value("vllm:inter_token_latency_seconds_count") == 0


def test_outputs_that_did_not_complete_count_in_no_whole_request() -> None:
    served = Served()
    served.requests.ended(Stand(finish_reason=FinishReason.CANCELLED))
    served.requests.ended(Stand(Times(admitted=0.0, first_token=0.0), finish_reason=FinishReason.CANCELLED))
    assert served.value("vllm:time_to_first_token_seconds_count") == 1
    assert served.value("vllm:request_queue_time_seconds_count") == 1
    assert served.value("vllm:e2e_request_latency_seconds_count") == 0
    assert served.value("vllm:request_generation_tokens_count") == 0


def test_an_output_of_one_token_has_no_time_per_token() -> None:
    served = Served()
    served.requests.ended(Stand(inputs=(1,) * 25))
    assert served.value("vllm:request_time_per_output_token_seconds_count") == 0
    assert served.value("vllm:request_generation_tokens_sum") == 1


def test_a_stream_that_its_client_leaves_is_forgotten() -> None:
    served = Served()
    served.requests.progressed(Given(Stand(), (7,)))
    gc.collect()
    assert len(served.requests._last) == 0
