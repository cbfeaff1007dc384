"""The control group finds the true speedup, and its interval covers it as often as it says."""

from __future__ import annotations

import random

import pytest

from outrider.control.control_group import ControlGroup, Speedup

PLAIN, DRAFTING = {1: 0.025, 8: 0.05, 32: 0.1}, {1: 0.03, 8: 0.07, 32: 0.1}
MORE = {1: 1.5, 8: 0.4, 32: 0.0}
"""Seconds of rounds by load, and the mean tokens that drafts add for each request."""


def run(seed: int, rounds: int = 3000) -> tuple[Speedup, float]:
    """What a group tells of synthetic rounds, and the true speedup."""
    dice, group = random.Random(seed), ControlGroup(0.05, seed)
    tokens = seconds = plainly = 0.0
    for number in range(rounds):
        load = (1, 8, 32)[number * 3 // rounds]
        noise = dice.lognormvariate(0, 0.1)
        if group.draw():
            group.observe(load, load, PLAIN[load] * noise, control=True)
        else:
            emitted = load + sum(dice.random() * 2 * MORE[load] for _ in range(load))
            group.observe(load, round(emitted), DRAFTING[load] * noise, control=False)
            tokens += round(emitted)
            seconds += DRAFTING[load] * noise
            plainly += round(emitted) * PLAIN[load] / load * dice.lognormvariate(0, 0) * 1.005  # the noise's mean
    found = group.speedup
    assert found is not None
    return found, plainly / seconds


def test_the_interval_covers_the_true_speedup() -> None:
    """Of 200 intervals of 95 %, fewer than 180 cover with a chance below 10⁻³."""
    covered = 0
    for seed in range(200):
        found, true = run(seed)
        assert found.low < found.value < found.high
        covered += found.low <= true <= found.high
    assert covered >= 180


def test_loads_are_not_mixed_up() -> None:
    """Plain rounds of a heavy load are cheap per token: against them, light rounds would look slow."""
    group = ControlGroup(0.5)
    for _ in range(50):
        group.observe(32, 32, 0.1, control=True)
        group.observe(1, 2, 0.03, control=False)
    assert group.speedup is None
    for _ in range(50):
        group.observe(1, 1, 0.025, control=True)
    assert group.speedup is not None
    assert group.speedup.value == pytest.approx(2 * 0.025 / 0.03)


@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_the_share_is_kept(share: float) -> None:
    group = ControlGroup(share, 3)
    drawn = sum(group.draw() for _ in range(20_000)) / 20_000
    assert drawn == pytest.approx(share, abs=0.005)
