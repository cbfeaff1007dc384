"""The cost of a pass by rows: interpolated, never falling, and soon right whatever it began with."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.control.pass_costs import PassCosts

STAIRCASE = {1: 0.025, 8: 0.025, 9: 0.033, 12: 0.036, 16: 0.046, 32: 0.085, 64: 0.16}


def stairs(rows: int) -> float:
    return float(np.interp(rows, list(STAIRCASE), list(STAIRCASE.values())))


def test_a_profile_is_told_as_it_is() -> None:
    costs = PassCosts(STAIRCASE)
    for rows in range(1, 65):
        assert costs.seconds(rows) == pytest.approx(stairs(rows))
    assert costs.seconds(128) == pytest.approx(2 * STAIRCASE[64])


@given(st.dictionaries(st.integers(1, 200), st.floats(1e-4, 10.0), min_size=1, max_size=6), st.integers(1, 400))
def test_more_rows_never_cost_less(profile: dict[int, float], most: int) -> None:
    table = PassCosts(profile).table(most)
    assert len(table) > most
    assert (np.diff(table) >= 0).all()


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_a_machine_that_changes_its_speed_is_followed_without_new_shape(factor: float) -> None:
    costs, dice = PassCosts(STAIRCASE), random.Random(1)
    for _ in range(200):
        rows = dice.randint(1, 40)
        costs.observe(rows, factor * stairs(rows) * dice.uniform(0.95, 1.05))
    for rows in (1, 8, 9, 16, 32):
        assert costs.seconds(rows) == pytest.approx(factor * stairs(rows), rel=0.1)


def test_a_shape_is_learned_from_rounds_alone() -> None:
    costs, dice = PassCosts(), random.Random(1)
    assert not costs.known
    for _ in range(3000):
        rows = dice.choice([1, 2, 4, 8, 16, 32, 64])
        costs.observe(rows, stairs(rows) * dice.uniform(0.9, 1.1))
    assert costs.known
    for rows in (1, 8, 64):
        assert costs.seconds(rows) == pytest.approx(stairs(rows), rel=0.25)


def test_long_prompts_say_nothing_of_small_passes() -> None:
    costs = PassCosts(STAIRCASE)
    for _ in range(100):
        costs.observe(2048, 1.0)
    assert costs.seconds(8) == pytest.approx(STAIRCASE[8])


def test_one_interrupted_round_changes_little() -> None:
    costs = PassCosts(STAIRCASE)
    costs.observe(8, 60.0)
    assert costs.seconds(8) < 1.2 * STAIRCASE[8]
