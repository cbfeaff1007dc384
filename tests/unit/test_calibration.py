"""A drafter's estimates come to mean what they say, in the request they are made for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import Scripted
from tiny import VOCABULARY, tiny_model

from outrider import LLM, SamplingParams
from outrider.drafters._calibration import _MEMORY, _PRIOR, Calibration
from outrider.drafters.base import DraftContext, Needs, Outcome
from outrider.drafters.lookup_model import LookupModel, LookupModelDrafter
from outrider.drafters.suffix import Suffix
from outrider.tree import TokenTree, TreeBuilder
from outrider.verify import Verdict


def chain(chances: list[float]) -> TokenTree:
    builder = TreeBuilder(0)
    for node, chance in enumerate(chances):
        builder.add(node, 1, survival=chance)
    return builder.build()


def after(calibration: Calibration, rounds: int, estimate: float, truth: float, seed: int = 0) -> float:
    """The factor after some rounds of chains whose every draft is accepted with a chance other than was estimated."""
    dice = random.Random(seed)
    for _ in range(rounds):
        tree = chain([min(1.0, estimate * calibration.factor)] * 3)
        accepted = next((depth for depth in range(3) if dice.random() >= truth), 3)
        calibration.observe(tree, Verdict.of(tree, range(1, accepted + 1), 2))
    return calibration.factor


@pytest.mark.parametrize(("estimate", "truth"), [(0.8, 0.2), (0.5, 0.5), (0.4, 0.8), (0.9, 0.05)])
def test_the_factor_is_truth_over_estimate(estimate: float, truth: float) -> None:
    """But for what the estimates count before anything was tested; the dice are fixed, so the outcome is, too."""
    factors = [after(Calibration(), 200, estimate, truth, seed) for seed in range(40)]
    expected = (_PRIOR + _MEMORY * truth) / (_PRIOR + _MEMORY * estimate)
    assert sum(factors) / len(factors) == pytest.approx(expected, rel=0.1)


def test_a_drafter_that_was_wrong_is_tried_again() -> None:
    calibration = Calibration()
    assert after(calibration, 60, 0.8, 0.0) < 0.1
    alone = chain([])
    for _ in range(400):
        calibration.observe(alone, Verdict.of(alone, (), 2))
    assert calibration.factor > 0.9


class Overconfident:
    """Drafts wrong tokens behind lookup and is sure of them."""

    needs = Needs(deterministic=True)

    def propose(self, context: DraftContext) -> list[TokenTree]:
        return [one.builder().chain([(one.tokens[-1] + 1) % VOCABULARY]).build() for one in context.sequences]

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        return most

    def observe(self, outcome: Outcome) -> None: ...
    def pause(self, key: str) -> None: ...
    def close(self, key: str) -> None: ...


def test_a_model_behind_lookup_is_not_lookups_fault() -> None:
    """What the model drafts says nothing about lookup, however sure of itself the model is."""
    lookup = Suffix().build(None)  # type: ignore[arg-type]
    both = LookupModelDrafter(LookupModel(model="none"), lookup, Overconfident())  # type: ignore[arg-type]
    config = Scripted(lambda sequence: sequence.builder().build(), most_nodes=8)
    llm = LLM.from_model(tiny_model(), speculation=config)
    llm.engine.drafting.drafters[0]._drafter = both  # type: ignore[assignment]
    factors: list[float] = []
    observe = both.observe

    def watch(outcome: Outcome) -> None:
        observe(outcome)
        factors.extend(text.calibration.factor for text in lookup._texts.values())

    both.observe = watch  # type: ignore[method-assign]
    wish = SamplingParams(max_tokens=60, temperature=1.0, seed=1, ignore_eos=True)
    (done,) = llm.generate([list(range(20))], wish)
    assert sum(done.speculation.tested) > 30
    assert min(factors) > 0.5


def test_drafts_of_hardly_any_chance_divide_nothing() -> None:
    long = chain([1e-200, 1e-200, 0.5])
    calibration = Calibration()
    calibration.observe(long, Verdict.of(long, (1, 2), 0))
    assert 0.0 < calibration.factor < float("inf")


@given(st.lists(st.tuples(st.lists(st.floats(0.01, 1.0), max_size=4), st.integers(0, 4)), max_size=30))
def test_any_history_leaves_a_factor_to_multiply_by(rounds: list[tuple[list[float], int]]) -> None:
    calibration = Calibration()
    for chances, accepted in rounds:
        tree = chain(chances)
        calibration.observe(tree, Verdict.of(tree, range(1, 1 + min(accepted, len(chances))), 2))
        assert 0.0 < calibration.factor < float("inf")


def test_lookup_leaves_off_where_the_text_only_seems_to_repeat() -> None:
    """Repeating prompts at a high temperature: drafts seem likely and are not, so few are verified after a while."""
    prompt = [1, 2, 3, 4, 5, 6] * 20
    wish = SamplingParams(max_tokens=300, temperature=8.0, seed=1, ignore_eos=True)
    (done,) = LLM.from_model(tiny_model(), speculation="suffix").generate([prompt], wish)
    assert sum(done.speculation.drafted) < 0.1 * done.speculation.rounds
