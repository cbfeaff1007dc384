"""What a server counts of the engine's rounds: hand-computed figures, readers on other threads, and recent rates."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from oracles import Scripted, random_trees
from table_model import TableModel
from tiny import tiny_model

from outrider import LLM, CacheConfig, SamplingParams, SchedulerConfig
from outrider.drafters.base import DraftSequence
from outrider.engine.engine import Engine
from outrider.metrics import FEWEST_ONE_ROW_ROUNDS, PhaseSeconds, RoundStats, RowKinds
from outrider.requests.stopping import FinishReason
from outrider.requests.turn import Turn
from outrider.server.metrics import Exposition, RequestMetrics, RoundFigures, RoundTotals, ServerFacts, stats_of
from outrider.server.metrics.rounds import WINDOW
from outrider.server.metrics.state import EngineState, state_of
from outrider.tree import TokenTree

FACTS = ServerFacts("small", "scripted", "coupled", "table", 8, "1.2.3")
PROMPT = [1, 2, 3]
REPEATED = [5, 6, 7, 8] * 6


def watched(llm: LLM) -> RoundTotals:
    totals = RoundTotals()
    llm.driver.between_rounds(totals.attach)
    return totals


def patterned(truth: Sequence[int], pattern: Sequence[int | None], width: int) -> Scripted:
    """A drafter of ``width`` tokens a round, of which the first few are right; None drops the round's draft."""
    plan = iter(pattern)

    def script(sequence: DraftSequence) -> TokenTree:
        right = next(plan)
        done, builder = len(sequence.tokens) - sequence.prompt_length, sequence.builder()
        if right is None:
            return builder.build()
        ahead = truth[done : done + min(width, sequence.nodes - 1, sequence.depth)]
        return builder.chain([t if place < right else (t + 1) % 8 for place, t in enumerate(ahead)]).build()

    return Scripted(script, most_nodes=width + 1)


class TestCounts:
    def test_a_known_pattern_has_the_figures_that_a_hand_computes(self) -> None:
        """2, 0, 4 and 1 of four drafts, one draft dropped, and at the end a draft of two, both accepted."""
        model, params = TableModel.random(8, seed=0), SamplingParams(max_tokens=16)
        truth = LLM.from_model(model, speculation=None).generate([PROMPT], params)[0].token_ids
        llm = LLM.from_model(model, speculation=patterned(truth, (2, 0, 4, 1, None, 2), width=4))
        totals = watched(llm)
        done = llm.generate([PROMPT], params)[0]
        figures = totals.figures
        assert done.token_ids == truth
        assert (figures.passes, figures.turns, figures.emitted, figures.decoded) == (7, 6, 16, 15)
        assert (figures.drafts, figures.drafted) == (5, [5, 5, 4, 4])
        assert (figures.tested, figures.accepted) == ([5, 4, 2, 1], [4, 3, 1, 1])
        assert figures.rows == RowKinds(prompt=3, decode=6, draft=9, wasted=9)
        assert (figures.prompt_tokens, figures.cached_tokens) == (3, 0)
        recent = totals.recent()
        assert recent.acceptance_rate == pytest.approx(9 / 12)
        assert recent.accepted_length == pytest.approx(1 + 9 / 6)
        assert recent.draft_rows == {1: pytest.approx(18 / 6)}
        assert recent.budget == {1: 4.0}
        stats = done.speculation
        assert (figures.drafted, figures.tested, figures.accepted) == (stats.drafted, stats.tested, stats.accepted)

    def test_trees_that_branch_are_counted_as_their_requests_count_them(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation=Scripted(random_trees(64, seed=3), most_nodes=9))
        totals = watched(llm)
        done = llm.generate([REPEATED[:n] for n in (3, 5, 8)], SamplingParams(max_tokens=30, ignore_eos=True))
        figures, expected = totals.figures, [0] * 9
        for each in done:
            for depth, count in enumerate(each.speculation.drafted):
                expected[depth] += count
        assert sum(figures.branches) > 0, "no tree branched"
        assert figures.drafted == expected[: len(figures.drafted)]
        assert sum(figures.drafted) == sum(expected) == figures.rows.draft + figures.rows.wasted
        assert sum(figures.tested) == sum(sum(each.speculation.tested) for each in done)

    def test_a_prompt_counts_once_although_it_is_computed_again(self) -> None:
        llm = LLM.from_model(
            tiny_model(),
            speculation=None,
            cache=CacheConfig(rows=96, page_size=8),
            scheduler=SchedulerConfig(max_rows=64),
        )
        totals = watched(llm)
        prompts = [REPEATED[:20], REPEATED[1:21], REPEATED[2:22]]
        llm.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True))
        assert state_of(llm.engine).preemptions > 0, "nothing was preempted"
        assert totals.figures.prompt_tokens == 60
        assert totals.figures.emitted == 120

    def test_cached_prompt_tokens_are_counted(self) -> None:
        llm = LLM.from_model(TableModel.random(8, seed=1), speculation=None, cache=CacheConfig(page_size=4))
        totals = watched(llm)
        for _ in range(2):
            llm.generate([[1, 2, 3, 4] * 4], SamplingParams(max_tokens=2))
        assert (totals.figures.prompt_tokens, totals.figures.cached_tokens) == (32, 12)

    def test_seconds_are_the_engines_own(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation="ngram")
        totals = watched(llm)
        llm.generate([REPEATED, REPEATED[:9]], SamplingParams(max_tokens=20, ignore_eos=True))
        seconds, own = totals.figures.seconds, llm.engine.seconds
        assert seconds == (own.prefill, own.mixed, own.draft, own.verify, own.other)
        assert totals.figures.rows == own.rows

    def test_rounds_are_sorted_by_their_tokens(self) -> None:
        llm = LLM.from_model(TableModel.random(8, seed=1), speculation=None)
        totals = watched(llm)
        llm.generate([[1] * 20], SamplingParams(max_tokens=3))
        counts = totals.figures.tokens_per_round
        assert (counts[0], counts[3], sum(counts)) == (2, 1, 3)  # 1, 1, and 20 prompt tokens with the first token
        assert totals.figures.tokens_of_rounds == 23

    def test_budgets_are_kept_by_running_requests(self) -> None:
        llm = LLM.from_model(
            TableModel.random(8, seed=1), speculation=Scripted(lambda sequence: sequence.builder().chain([0]).build())
        )
        totals = watched(llm)
        llm.generate([[1, number] for number in range(5)], SamplingParams(max_tokens=9, ignore_eos=True))
        loads = totals.figures.loads
        assert len(loads) == 4
        assert loads[3].turns > 0
        assert sum(load.drafted for load in loads) == sum(totals.figures.drafted)
        assert sum(load.turns for load in loads) == totals.figures.turns
        assert sum(load.rounds for load in loads) == totals.figures.passes - 1
        assert all(load.granted >= load.drafted for load in loads)


class TestReaders:
    def test_other_threads_read_whole_rounds_at_any_moment(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation=Scripted(random_trees(64, seed=1), most_nodes=6))
        totals = watched(llm)
        exposition = Exposition(FACTS, totals, RequestMetrics("small", 512))
        seen: list[RoundFigures] = []
        stop, failures = threading.Event(), list[BaseException]()

        def scrape() -> None:
            try:
                while not stop.is_set():
                    seen.append(totals.figures)
                    exposition.render()
                    stats_of(totals, FACTS)
            except BaseException as error:  # noqa: BLE001 - the test reports it
                failures.append(error)

        threads = [threading.Thread(target=scrape) for _ in range(2)]
        for thread in threads:
            thread.start()
        prompts = [REPEATED[:n] for n in range(2, 10)]
        done = llm.generate(prompts, SamplingParams(max_tokens=30, ignore_eos=True))
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len({each.passes for each in seen}) > 3, "the readers saw too few rounds"
        for each in (*seen, totals.figures):
            assert each.turns == each.rows.decode == each.decoded - sum(each.accepted)
            assert each.rows.draft == sum(each.accepted)
            assert each.rows.draft + each.rows.wasted == sum(each.drafted)
            assert each.drafts == sum(each.tests) == sum(each.acceptances)
            assert sum(each.tokens_per_round) == each.passes
            assert sum(load.turns for load in each.loads) == each.turns
        assert totals.figures.emitted == sum(len(each.token_ids) for each in done)

    def test_counts_never_fall(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation="ngram")
        totals, seen = watched(llm), list[RoundFigures]()

        class Notes:
            def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
                seen.append(totals.figures)

        llm.driver.between_rounds(lambda engine: engine.observers.append(Notes()))
        llm.generate([REPEATED], SamplingParams(max_tokens=40, ignore_eos=True))
        assert len(seen) > 3
        for one, other in pairwise(seen):
            assert other.passes == one.passes + 1
            assert other.emitted > one.emitted
            assert sum(other.drafted) >= sum(one.drafted)

    def test_a_cancelled_request_leaves_the_gauges_without_a_round(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation=None)
        totals = watched(llm)
        call = llm.driver.submit([(REPEATED, SamplingParams(max_tokens=400, ignore_eos=True))])
        assert llm.driver.wait(call) is not None
        assert stats_of(totals, FACTS)["running"] == 1
        assert stats_of(totals, FACTS)["kv_use"] > 0
        llm.driver.cancel(call)
        llm.driver.between_rounds(lambda engine: None)
        state = state_of(totals.engine)
        assert (state.running, state.waiting, state.kv_use) == (0, 0, 0.0)
        assert state.ended == {FinishReason.CANCELLED: 1}

    def test_drafters_that_fail_are_counted_by_the_reason(self) -> None:
        def script(sequence: DraftSequence) -> TokenTree:
            raise LookupError("a secret")

        llm = LLM.from_model(tiny_model(), speculation=Scripted(script))
        llm.generate([REPEATED, REPEATED[:5]], SamplingParams(max_tokens=4, ignore_eos=True))
        assert state_of(llm.engine).switched_off == {"raised": 2}

    def test_the_engine_is_not_kept_alive(self) -> None:
        llm = LLM.from_model(tiny_model(), speculation=None)
        totals = watched(llm)
        llm.generate([REPEATED], SamplingParams(max_tokens=2))
        reference = weakref.ref(llm.engine)
        llm.close()
        del llm
        gc.collect()
        assert reference() is None
        assert totals.engine is None
        assert state_of(totals.engine) == EngineState()
        assert stats_of(totals, FACTS)["tokens"] == 2


class Hands:
    """Rounds of one's own making, on a clock of one's own."""

    def __init__(self) -> None:
        self.now, self.seconds, self.observers = 1000.0, PhaseSeconds(), list[RoundTotals]()
        self.totals = RoundTotals(lambda: self.now)
        self.totals.attach(self)  # type: ignore[arg-type]

    def round(self, requests: int, drafts: int, tokens: int, seconds: float, prompt: int = 0) -> None:
        accepted = tokens - requests
        stats = RoundStats(RowKinds(prompt, requests, accepted, drafts - accepted), tokens, 0.0, seconds, 0.0)
        self.seconds.add(stats)
        self.now += seconds
        self.totals.observe([], stats)


class TestRecent:
    def test_the_speedup_is_measured_against_plain_rounds_of_as_many_requests(self) -> None:
        hands = Hands()
        for _ in range(FEWEST_ONE_ROW_ROUNDS):
            hands.round(1, 0, 1, 0.010)
        hands.now += 2 * WINDOW
        for _ in range(10):
            hands.round(1, 4, 3, 0.020)
        assert hands.totals.recent().speedup == pytest.approx(3 * 0.010 / 0.020)
        for _ in range(100):  # two requests: no round of two rows was ever measured
            hands.round(2, 4, 6, 1e-6)
        assert hands.totals.recent().speedup == pytest.approx(3 * 0.010 / 0.020)
        for _ in range(FEWEST_ONE_ROW_ROUNDS):
            hands.round(2, 0, 2, 0.016)
        hands.now += 2 * WINDOW
        for _ in range(10):
            hands.round(2, 4, 6, 0.024)
        assert hands.totals.recent().speedup == pytest.approx(3 * 0.016 / 0.024)

    def test_rounds_beside_a_prompt_say_nothing_of_the_speedup(self) -> None:
        hands = Hands()
        for _ in range(FEWEST_ONE_ROW_ROUNDS):
            hands.round(1, 0, 1, 0.010)
        hands.now += 2 * WINDOW
        hands.round(1, 4, 3, 0.020)
        hands.round(1, 0, 1, 5.0, prompt=100)
        assert hands.totals.recent().speedup == pytest.approx(3 * 0.010 / 0.020)

    def test_one_row_seconds_need_a_few_rounds(self) -> None:
        hands = Hands()
        for _ in range(FEWEST_ONE_ROW_ROUNDS - 1):
            hands.round(1, 0, 1, 0.010)
        assert hands.totals.one_row_seconds is None
        hands.round(1, 0, 1, 0.010)
        assert hands.totals.one_row_seconds == pytest.approx(0.010)

    @pytest.mark.parametrize("gap", [0.0, 0.5, 30.0, 59.0, 61.5, 1000.0])
    def test_the_last_minute_forgets_what_is_older(self, gap: float) -> None:
        hands = Hands()
        for _ in range(50):
            hands.round(1, 3, 4, 0.01)
        hands.now += gap
        hands.round(1, 3, 1, 0.01)
        length = hands.totals.recent().accepted_length
        assert length == pytest.approx(201 / 51 if gap < WINDOW else 1.0)

    def test_nothing_is_said_where_nothing_happened(self) -> None:
        hands = Hands()
        assert hands.totals.recent() == (None, None, None, {}, {})
        hands.round(1, 3, 4, 0.01)
        assert hands.totals.recent().accepted_length == pytest.approx(4.0)
        hands.now += WINDOW + 1.0
        assert hands.totals.recent() == (None, None, None, {}, {})

    def test_a_long_run_keeps_a_bounded_history(self) -> None:
        hands = Hands()
        for _ in range(5000):
            hands.round(1, 0, 1, 0.25)
        assert len(hands.totals._history) <= 2 * WINDOW + 3
        assert hands.totals.recent().accepted_length == pytest.approx(1.0)
        assert hands.totals.figures.passes == 5000


def test_an_unattached_observer_counts_rounds_and_knows_no_engine() -> None:
    totals = RoundTotals()
    totals.observe([], RoundStats(RowKinds(decode=1), 1, 0.0, 0.1, 0.0))
    assert (totals.figures.passes, totals.figures.turns) == (1, 1)
    assert totals.engine is None
    assert stats_of(totals, FACTS)["running"] == 0


def test_stats_are_what_the_page_reads() -> None:
    torch.manual_seed(0)
    llm = LLM.from_model(tiny_model(), speculation="ngram")
    totals = watched(llm)
    llm.generate([REPEATED], SamplingParams(max_tokens=40, ignore_eos=True))
    stats = stats_of(totals, FACTS)
    assert {
        *("time", "model", "algorithm", "backend", "running", "waiting", "max_running", "kv_use", "tokens", "rounds"),
        *("drafted", "tested", "accepted", "cached_tokens", "prompt_tokens", "budget", "rows", "seconds"),
        "one_row_seconds",
    } <= stats.keys()
    assert (stats["model"], stats["max_running"], stats["tokens"]) == ("small", 8, 40)
    assert stats["rows"].keys() == {"prompt", "decode", "draft", "wasted"}
    assert stats["seconds"].keys() == {"prefill", "mixed", "draft", "verify", "other"}
    assert stats["rounds"] + sum(stats["accepted"]) == stats["tokens"] - 1
    assert stats["drafted"] > 0
    assert stats["budget"].keys() == {"1"}
    assert isinstance(llm.engine, Engine)
