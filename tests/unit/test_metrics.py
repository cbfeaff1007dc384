"""What a run says of its own speed: the curve of its rounds, and a speedup that takes no row for free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tiny import tiny_model
from wrapped import Wrapped

from outrider import LLM, SamplingParams, metrics
from outrider.metrics import (
    FEWEST_ONE_ROW_ROUNDS,
    PhaseSeconds,
    Prediction,
    RoundStats,
    RowCosts,
    RowKinds,
    SpeculationStats,
)

REPEATED = [5, 6, 7, 8] * 6


def made(one_row: int, wide: int) -> tuple[SpeculationStats, PhaseSeconds]:
    """Rounds of one row that take 10 ms, and rounds of five rows that take 20, draft for 5 and emit three tokens."""
    stats, seconds = SpeculationStats(levels=4 * wide), PhaseSeconds()
    for rows, count, emitted, draft, verify in ((1, one_row, 1, 0.0, 0.01), (5, wide, 3, 0.005, 0.02)):
        for _ in range(count):
            seconds.add(RoundStats(RowKinds(decode=1, draft=rows - 1), emitted, draft, verify, 0.0))
            stats.rounds += 1
            stats.emitted += emitted
    return stats, seconds


class TestPrediction:
    def test_is_what_one_row_rounds_would_have_taken(self) -> None:
        found = Prediction.of(*made(one_row=10, wide=10))
        assert found is not None
        assert found.one_row == pytest.approx(0.01)
        assert found.speedup == pytest.approx((10 + 30) * 0.01 / (10 * 0.01 + 10 * 0.025))
        assert found.cost_coefficient == pytest.approx(0.05 / 40 / ((10 * 0.01 + 10 * 0.02) / 20))

    @pytest.mark.parametrize("one_row", [0, FEWEST_ONE_ROW_ROUNDS - 1])
    def test_too_few_rounds_of_one_row_tell_nothing(self, one_row: int) -> None:
        found = Prediction.of(*made(one_row, wide=10))
        assert found is not None
        assert (found.one_row, found.speedup) == (None, None)

    def test_plain_rounds_beside_the_run_tell_it(self) -> None:
        plain = RowCosts()
        for _ in range(FEWEST_ONE_ROW_ROUNDS):
            plain.add(1, 0.01)
        found = Prediction.of(*made(one_row=0, wide=10), plain)
        assert found is not None
        assert found.speedup == pytest.approx(30 * 0.01 / (10 * 0.025))

    @pytest.mark.parametrize("tokens", [1, 3])
    def test_no_more_is_gained_than_the_tokens_a_round(self, tokens: int) -> None:
        """One-row rounds that a busy machine slowed, all but a few of them or a few, tell nothing or the same."""
        stats, seconds, plain = SpeculationStats(levels=4), PhaseSeconds(), RowCosts()
        seconds.add(RoundStats(RowKinds(decode=1, draft=4), tokens, 0.001, 0.01, 0.0))
        stats.rounds, stats.emitted = 1, tokens
        for one_row in [0.01] * FEWEST_ONE_ROW_ROUNDS + [0.5] * (FEWEST_ONE_ROW_ROUNDS - 1):
            plain.add(1, one_row)
        found = Prediction.of(stats, seconds, plain)
        assert found is not None
        assert found.speedup == pytest.approx(tokens * 0.01 / 0.011)
        for _ in range(2):
            plain.add(1, 0.5)
        found = Prediction.of(stats, seconds, plain)
        assert found is not None
        assert (found.one_row, found.speedup) == (0.5, None)

    def test_rounds_shared_with_others_tell_nothing(self) -> None:
        stats, seconds = made(one_row=10, wide=10)
        seconds.tokens += 7
        found = Prediction.of(stats, seconds)
        assert found is not None
        assert found.speedup is None

    def test_nothing_is_said_where_nothing_was_drafted(self) -> None:
        assert Prediction.of(*made(one_row=10, wide=0)) is None


class TestRowCosts:
    def test_what_was_added_since_a_copy(self) -> None:
        costs = RowCosts()
        costs.add(1, 2.0)
        before = costs.copy()
        costs.add(1, 4.0)
        costs.add(3, 5.0)
        assert (costs - before).rounds == {1: 1, 3: 1}
        assert (costs - before).mean(1) == pytest.approx(4.0)
        assert (before + costs).rounds == {1: 3, 3: 1}
        assert (costs - costs).rounds == {}
        assert costs.mean(1) == pytest.approx(3.0), "a sum or difference changed its parts"
        assert ((costs - before).one_row, (before + costs).one_row) == (4.0, 2.0)

    def test_the_median_is_of_the_latest_rounds_and_takes_bounded_memory(self) -> None:
        costs = RowCosts()
        for number in range(3000):
            costs.add(1, float(number))
            costs.add(2, -1.0)
        before = costs.copy()
        assert len(costs.latest) < 1000
        assert 2000 < costs.one_row < 3000
        for _ in range(2000):
            costs.add(1, 7.0)
        assert (costs - before).one_row == 7.0
        assert (costs + before).rounds[1] == 8000
        assert len((costs + before).latest) < 1000


class Clock:
    """A clock that goes on only when a target computes rows: ``base`` for a pass, ``each`` for a row."""

    def __init__(self, base: float, each: float) -> None:
        self.now, self.base, self.each = 0.0, base, each

    def perf_counter(self) -> float:
        return self.now

    def watch(self, target: Any) -> Wrapped:
        clock = self

        class Timed(Wrapped):
            def forward(self, batch: Any, *rest: Any) -> Any:
                clock.now += clock.base + clock.each * len(batch.tokens)
                return target.forward(batch, *rest)

        return Timed(target)


@pytest.mark.parametrize(("base", "each"), [(0.0, 1.0), (1.0, 0.0), (1.0, 0.25)], ids=["dear", "free", "between"])
def test_the_speedup_is_the_one_a_plain_run_would_show(
    monkeypatch: pytest.MonkeyPatch, base: float, each: float
) -> None:
    """On a clock that charges for rows alone the prediction is exact: no more than 1 where every row has its price."""
    clock = Clock(base, each)
    monkeypatch.setattr(metrics, "time", clock)
    spent = {}
    for method in ("none", "ngram"):
        llm = LLM.from_model(clock.watch(tiny_model()), speculation=method)
        done = llm.generate(REPEATED, SamplingParams(max_tokens=96, ignore_eos=True))[0]
        costs = done.seconds.by_rows
        assert sum(costs.rounds.values()) == done.seconds.rounds
        assert sum(rows * count for rows, count in costs.rounds.items()) == done.speculation.rounds + sum(
            done.speculation.drafted
        )
        assert sum(costs.seconds.values()) == pytest.approx(done.seconds.verify + done.seconds.other)
        spent[method] = done.seconds.decode
    assert done.prediction is not None, "ngram never drafted"
    assert done.prediction.speedup == pytest.approx(spent["none"] / spent["ngram"])
    if each == 1.0:
        assert done.prediction.speedup < 1


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_first_token_belongs_to_the_prompt(length: int) -> None:
    """However short the prompt: only later tokens are decoded."""
    llm = LLM.from_model(tiny_model(0), speculation="none")
    done = llm.generate([list(range(3, 3 + length))], SamplingParams(max_tokens=3, ignore_eos=True))[0]
    assert (done.seconds.rounds, done.seconds.tokens, done.speculation.rounds) == (2, 2, 2)
    assert (done.seconds.rows.prompt, done.seconds.rows.decode) == (length, 2)


def test_counts_may_grow_while_they_are_merged() -> None:
    class Growing(list[int]):
        """Counts to which the engine's thread adds a depth as soon as somebody reads them."""

        def __iter__(self) -> Iterator[int]:
            self.append(1)
            return super().__iter__()

    total = SpeculationStats()
    total.merge(SpeculationStats(drafted=Growing(), tested=Growing([2]), accepted=Growing([1, 1])))
    assert (total.drafted, total.tested, total.accepted) == ([1], [2, 1], [1, 1, 1])
