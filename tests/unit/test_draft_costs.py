"""What drafting costs: fitted from rounds that differ in requests and depth."""

from __future__ import annotations

import random

import pytest

from outrider.control.draft_costs import DraftCosts


@pytest.mark.parametrize(("request_s", "step_s"), [(1e-4, 0.0), (0.0, 0.01), (1e-3, 5e-3)])
def test_both_parts_are_found(request_s: float, step_s: float) -> None:
    costs, dice = DraftCosts(), random.Random(1)
    for _ in range(300):
        requests, levels = dice.randint(1, 16), dice.randint(0, 8)
        costs.observe(requests, levels, (requests * request_s + levels * step_s) * dice.uniform(0.9, 1.1))
    assert costs.request == pytest.approx(request_s, rel=0.2, abs=3e-4)
    assert costs.step == pytest.approx(step_s, rel=0.2, abs=3e-4)
    assert costs.seconds(4, 4) == pytest.approx(4 * request_s + 4 * step_s, rel=0.2)


def test_rounds_that_are_all_alike_are_told_right() -> None:
    costs = DraftCosts()
    for _ in range(50):
        costs.observe(1, 4, 0.04)
    assert costs.seconds(1, 4) == pytest.approx(0.04, rel=0.05)
    assert min(costs.request, costs.step) >= 0.0


def test_a_change_is_followed() -> None:
    costs, dice = DraftCosts(), random.Random(2)
    for step in (0.01, 0.03):
        for _ in range(200):
            levels = dice.randint(1, 8)
            costs.observe(1, levels, levels * step)
    assert costs.step == pytest.approx(0.03, rel=0.1)
