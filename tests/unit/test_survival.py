"""Chances of acceptance: what drafters tell becomes what happens, for all requests and for each."""

from __future__ import annotations

import random

import pytest

from outrider.control.survival import OwnCorrection, SurvivalEstimates
from outrider.tree import TokenTree, TreeBuilder


def chain(told: float, length: int = 3) -> TokenTree:
    builder = TreeBuilder(0)
    for node in range(length):
        builder.add(node, node + 1, survival=told)
    return builder.build()


def emitted(dice: random.Random, true: float, length: int = 3) -> list[int]:
    """Accepted drafts of ``chain``, and the target's own token after them."""
    found = []
    for token in range(1, length + 1):
        if dice.random() >= true:
            break
        found.append(token)
    return [*found, 99]


def test_it_starts_from_what_the_drafter_tells_and_never_rises_on_a_path() -> None:
    estimates = SurvivalEstimates()
    for told in (0.05, 0.5, 0.95):
        survival = estimates.survival("suffix", chain(told), OwnCorrection())
        assert survival == sorted(survival, reverse=True)
        assert survival[1] == pytest.approx(told, abs=0.15)


@pytest.mark.parametrize("true", [0.1, 0.5, 0.9])
def test_confidence_becomes_acceptance(true: float) -> None:
    estimates, dice = SurvivalEstimates(), random.Random(2)
    for _ in range(1500):
        estimates.observe("suffix", chain(0.75), emitted(dice, true), OwnCorrection())
    survival = estimates.survival("suffix", chain(0.75), OwnCorrection())
    assert survival[1:] == pytest.approx([true, true**2, true**3], abs=0.06)
    other = estimates.survival("ngram", chain(0.75), OwnCorrection())
    assert other[1] == pytest.approx(0.675, abs=0.1), "methods learn apart"


def test_one_request_may_differ_from_all_others() -> None:
    estimates, dice, mine = SurvivalEstimates(), random.Random(3), OwnCorrection()
    for _ in range(1000):
        estimates.observe("suffix", chain(0.75), emitted(dice, 0.8), OwnCorrection())
    for _ in range(60):
        estimates.observe("suffix", chain(0.75), emitted(dice, 0.2), mine)
    assert estimates.survival("suffix", chain(0.75), mine)[1] < 0.4
    assert estimates.survival("suffix", chain(0.75), OwnCorrection())[1] > 0.65


def test_a_correction_is_forgotten() -> None:
    mine, dice = OwnCorrection(), random.Random(4)
    for _ in range(50):
        mine.add(0.8, hit=False)
    low = mine.factor
    for _ in range(200):
        mine.add(0.8, hit=dice.random() < 0.8)
    assert low < 0.4 < 0.85 < mine.factor


def test_what_was_not_verified_teaches_as_far_as_the_text_tells() -> None:
    estimates = SurvivalEstimates()
    for _ in range(100):
        estimates.observe("suffix", chain(0.75), [1], OwnCorrection())  # one token a round: nothing was verified
    survival = estimates.survival("suffix", chain(0.75), OwnCorrection())
    assert survival[1] > 0.9
    assert survival[2] / survival[1] == pytest.approx(0.675, abs=0.05)


def test_siblings_are_alternatives() -> None:
    builder = TreeBuilder(0)
    builder.add(0, 1, survival=0.55)
    builder.add(0, 2, survival=0.35)
    tree, estimates = builder.build(), SurvivalEstimates()
    for turn in range(400):
        estimates.observe("suffix", tree, [1 if turn % 4 else 2], OwnCorrection())
    survival = estimates.survival("suffix", tree, OwnCorrection())
    assert survival[1:] == pytest.approx([0.75, 0.25], abs=0.05)
