"""Intervals of held-out figures, and what may be concluded from them: where a curve points, and when to stop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from outrider.train.evaluation.held_out import Evaluation
from outrider.train.evaluation.intervals import Counts, gain, length_interval, rate_intervals, student_t
from outrider.train.report.curve import outlook


def counts(rate: float, texts: int, seed: int, tested: int = 40, unlike: float = 0.1) -> Counts:
    """Texts of two depths, each with a rate of its own around one."""
    dice = np.random.default_rng(seed)
    own = np.clip(dice.normal(rate, unlike, texts), 0.01, 0.99)
    first = dice.binomial(tested, own)
    return Counts.of(
        np.stack([first, dice.binomial(first, own)], 1).tolist(), np.stack([np.full(texts, tested), first], 1).tolist()
    )


def evaluation(tokens: int, found: Counts) -> Evaluation:
    accepted, tested = (array.astype(int) for array in (found.accepted, found.tested))
    every = np.ones(len(accepted))
    totals = (tuple(accepted.sum(0).tolist()), tuple(tested.sum(0).tolist()))
    by_text = (tuple(map(tuple, accepted.tolist())), tuple(map(tuple, tested.tolist())))
    return Evaluation(tokens, tokens, float(found.lengths(every)), *totals, *by_text)


@pytest.mark.parametrize("freedom", [3, 5, 12, 200])
def test_students_t_is_right(freedom: int) -> None:
    assert student_t(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)


@pytest.mark.parametrize("texts", [6, 40])
def test_an_interval_holds_the_truth_as_often_as_it_says(texts: int) -> None:
    """Of 300 intervals 285 are due; fewer than 267 come by chance once in 10⁵ (binomial)."""
    truth = counts(0.6, 20_000, seed=10**6)
    wanted = float(truth.lengths(np.ones(20_000)))
    found = [length_interval(counts(0.6, texts, seed)) for seed in range(300)]
    assert sum(ends is not None and ends.low <= wanted <= ends.high for ends in found) >= 267
    narrow = [
        (ends.value + (ends.low - ends.value) / 3, ends.value + (ends.high - ends.value) / 3) for ends in found if ends
    ]
    assert sum(low <= wanted <= high for low, high in narrow) < 267, "a third of the width is as good"


def test_the_figures_are_those_of_all_texts() -> None:
    found = Counts.of([[3, 1], [1, 0], [2, 2], [4, 1]], [[4, 3], [4, 1], [4, 2], [4, 4]])
    whole, rates = length_interval(found), rate_intervals(found)
    assert whole is not None
    assert rates is not None
    assert [rate.value for rate in rates] == pytest.approx([10 / 16, 4 / 10])
    assert whole.value == pytest.approx(1 + 10 / 16 + 10 / 16 * 4 / 10)
    assert whole.low <= whole.value <= whole.high


def test_few_texts_have_no_interval_and_unlike_ones_no_difference() -> None:
    few, many = counts(0.5, 3, 0), counts(0.5, 8, 0)
    assert length_interval(few) is None
    assert rate_intervals(few) is None
    assert gain(few, few) is None
    assert gain(many, counts(0.5, 9, 0)) is None
    assert gain(Counts.of([], []), Counts.of([], [])) is None


def test_a_difference_on_the_same_texts_is_told_apart_where_two_intervals_are_not() -> None:
    before = counts(0.5, 30, 0, unlike=0.25)
    after = Counts(np.minimum(before.accepted + np.array([2, 0]), before.tested), before.tested)
    change, first, second = gain(before, after), length_interval(before), length_interval(after)
    assert change is not None
    assert first is not None
    assert second is not None
    assert change.low > 0
    assert first.high > second.low, "the two intervals do not even overlap"


def test_a_rising_curve_is_followed_with_an_interval() -> None:
    taus = {1000: 0.2, 2000: 0.3, 4000: 0.4, 8000: 0.5, 16_000: 0.6}
    found = outlook(
        [evaluation(0, counts(0.01, 40, 0)), *(evaluation(n, counts(a, 40, 0)) for n, a in taus.items())], 3.0
    )
    assert found.law is not None
    assert found.twice is not None
    assert found.twice.low < found.twice.value < found.twice.high
    assert found.twice.value > 1 + 0.6
    assert "at twice the tokens" in str(found)


def test_a_flat_curve_is_not_followed() -> None:
    """Judgements that differ by chance alone rise about every second time, and are followed seldom."""
    rises = followed = 0
    for trial in range(60):
        judged = [evaluation(1000 * 2**step, counts(0.5, 12, 100 * trial + step)) for step in range(5)]
        rises += judged[-1].length > judged[-2].length
        found = outlook(judged, 3.0)
        followed += found.law is not None
        assert found.law is not None or found.reason.startswith(
            "too flat to extrapolate: from 8,000 to 16,000 tokens τ"
        )
    assert rises > 15
    assert followed <= 9  # one in forty is due; ten of sixty by chance less than once in 10^5


def test_too_few_judgements_or_texts_are_named() -> None:
    short = [evaluation(1000 * step, counts(0.2 * step, 12, 0)) for step in range(4)]
    assert outlook(short, 3.0).reason == "too few evaluations to extrapolate: 3 of at least 4"
    few = [evaluation(1000 * step, counts(0.15 * step, 3, 0)) for step in range(1, 6)]
    assert outlook(few, 3.0).reason == "too few held-out texts to extrapolate: 3 of at least 4"


def test_a_judgement_without_texts_has_no_interval() -> None:
    """As a state has it that is older than they are."""
    old = Evaluation(1, 1000, 1.5, (1,), (2,))
    assert old.length_interval is None
    assert "held-out τ 1.500 · α by position 0.500" in str(old)
    assert outlook([old] * 6, 3.0).reason.startswith("too few held-out texts")
