"""The bench's parts that need no model: the selection expression and the statistics."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.bench.bootstrap import speedup, speedup_interval
from outrider.bench.selection import select
from outrider.errors import ConfigError
from outrider.metrics import SpeculationStats, predicted_speedup, rates_per_round


class TestSelect:
    @pytest.mark.parametrize(
        ("expression", "rows"),
        [
            ("i%8==0", [0, 8]),
            ("i<3", [0, 1, 2]),
            ("1 <= i < 4", [1, 2, 3]),
            ("i%2 and not i>5", [1, 3, 5]),
            ("i==2 or i==-3+6", [2, 3]),
            ("i//4*4==i", [0, 4, 8]),
            ("i", list(range(1, 10))),
        ],
    )
    def test_rows(self, expression: str, rows: list[int]) -> None:
        chosen = select(expression)
        assert [row for row in range(10) if chosen(row)] == rows

    @pytest.mark.parametrize(
        "expression",
        [
            "__import__('os').system('true')",
            "i.__class__",
            "[i for i in (1,)]",
            "(lambda: i)()",
            "i**99999999",
            "i<<99999999",
            "'i'*10",
            "1.5<i",
            "j==0",
            "i if i else 0",
            "i:=3",
            "True",
            "open",
            "f'{i}'",
            "",
            "i%",
            "i; i",
            "(" * 150 + "i",
            "i\0",
            "9" * 201,
            "-" * 199 + "i" * 9,
        ],
    )
    def test_hostile_or_broken_input_is_refused(self, expression: str) -> None:
        with pytest.raises(ConfigError, match="--select"):
            select(expression)

    def test_division_by_zero_is_told(self) -> None:
        with pytest.raises(ConfigError, match="divides by zero"):
            select("i%0==0")(1)


class TestStatistics:
    def test_speedup_is_a_ratio_of_totals(self) -> None:
        assert speedup([10, 30], [1, 1], [10, 30], [2, 6]) == pytest.approx(4.0)
        assert speedup([0], [0], [1], [1]) is None

    def test_paired_interval_ignores_what_prompts_share(self) -> None:
        lengths = [float(n) for n in range(10, 110, 5)]
        slow = [length / 10 for length in lengths]
        fast = [seconds / 2 for seconds in slow]
        low, high = speedup_interval(lengths, fast, lengths, slow)  # type: ignore[misc]
        assert low == pytest.approx(2.0)
        assert high == pytest.approx(2.0)

    def test_interval_covers_the_truth_about_as_often_as_it_says(self) -> None:
        generator, covered = torch.Generator().manual_seed(5), 0
        for trial in range(200):
            plain = torch.ones(40).tolist()
            mine = torch.exp(0.3 * torch.randn(40, generator=generator)).tolist()
            ends = speedup_interval(plain, mine, plain, plain, seed=trial)
            assert ends is not None
            covered += ends[0] <= 1 / math.exp(0.045) <= ends[1]
        assert 176 <= covered <= 199  # 95 % nominal, a little less for 40 prompts

    def test_one_prompt_has_no_interval(self) -> None:
        assert speedup_interval([1], [1], [1], [1]) is None

    def test_predicted_speedup_is_leviathans(self) -> None:
        alpha, gamma, c = 0.8, 4, 0.1
        closed = (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))
        assert predicted_speedup([alpha] * gamma, c) == pytest.approx(closed)
        assert predicted_speedup([alpha] * gamma, c, verify=1.5) == pytest.approx(closed * 1.4 / 1.9)

    def test_rates_per_round_multiply_to_the_accepted_length(self) -> None:
        stats = SpeculationStats(rounds=10, emitted=19, drafted=[6, 6, 6], tested=[6, 5, 4], accepted=[5, 4])
        assert predicted_speedup(rates_per_round(stats), 0.0) == pytest.approx(1 + 9 / 10)
