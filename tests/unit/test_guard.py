"""What a custom drafter says of its drafts is checked before a rule believes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracles import Scripted
from tiny import VOCABULARY, tiny_model

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters.base import DraftSequence, Needs
from outrider.tree import Candidate, TokenTree
from outrider.verify import make_verifier, registered

PROMPT = [1, 2, 3, 1, 2]
LOSSLESS = [name for name, rule in registered().items() if rule.lossless]
RATIO = [name for name in LOSSLESS if not make_verifier(name).draws.target_alone]
DRAFT = 5


def flat() -> np.ndarray:
    return np.full(VOCABULARY, 1.0 / VOCABULARY)


def without(token: int) -> np.ndarray:
    law = flat()
    law[token] = 0.0
    return law / law.sum()


def with_number(value: float) -> np.ndarray:
    law = flat()
    law[DRAFT + 1] = value
    return law


LAWS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "too short": (lambda: flat()[:-1], ()),
    "too long": (lambda: np.append(flat(), 0.0), ()),
    "two dimensions": (lambda: flat()[None], ()),
    "a tensor": (lambda: torch.from_numpy(flat()), ()),
    "a list": (lambda: flat().tolist(), ()),
    "half precision": (lambda: flat().astype(np.float16), ()),
    "NaN": (lambda: with_number(np.nan), ()),
    "infinity": (lambda: with_number(np.inf), ()),
    "negative": (lambda: with_number(-0.1), ()),
    "too much": (lambda: 1.5 * flat(), ()),
    "all zero": (lambda: 0.0 * flat(), ()),
    "no chance for the draft": (lambda: without(DRAFT), ()),
    "the draft was removed": (flat, (DRAFT,)),
    "a token that is none was removed": (flat, (VOCABULARY,)),
    "a float was removed": (flat, (2.0,)),
}


def engine(rule: str, tree: Callable[[DraftSequence], TokenTree], needs: Needs) -> LLM:
    return LLM.from_model(tiny_model(), speculation=Speculation(Scripted(tree, needs=needs), rule))


def goes_on_plain(llm: LLM, rule: str, log: str) -> None:
    """The request ended as it should, its drafter was told off by name, and nothing of it was verified."""
    plain = LLM.from_model(tiny_model(), speculation=Speculation("none", rule))
    for heat in (0.0, 1.0):
        wish = SamplingParams(max_tokens=8, temperature=heat, seed=4)
        (done,), (alone,) = llm.generate([PROMPT], wish), plain.generate([PROMPT], wish)
        assert done.token_ids == alone.token_ids
        assert sum(done.speculation.drafted) == 0
    assert "drafting ended for request" in log


@pytest.mark.parametrize("rule", RATIO)
@pytest.mark.parametrize("law", LAWS)
def test_a_law_that_is_none(rule: str, law: str, caplog: pytest.LogCaptureFixture) -> None:
    make, removed = LAWS[law]

    def tree(sequence: DraftSequence) -> TokenTree:
        builder = sequence.builder()
        builder.add(0, DRAFT, q=make(), removed=removed)
        return builder.build()

    llm = engine(rule, tree, Needs())
    llm.generate([PROMPT], SamplingParams(max_tokens=3))
    goes_on_plain(llm, rule, caplog.text)


@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("token", [5.0, np.int64(5), True, "5", None, -1, VOCABULARY], ids=repr)
def test_a_token_that_is_none(rule: str, token: Any, caplog: pytest.LogCaptureFixture) -> None:
    llm = engine(rule, lambda sequence: sequence.builder().chain([token]).build(), Needs(deterministic=True))
    llm.generate([PROMPT], SamplingParams(max_tokens=3))
    goes_on_plain(llm, rule, caplog.text)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_trees_may_come_one_by_one_and_be_made_of_lists(rule: str, caplog: pytest.LogCaptureFixture) -> None:
    def tree(sequence: DraftSequence) -> TokenTree:
        return TokenTree([sequence.tokens[-1], DRAFT], [-1, 0], [1.0, 0.5], [Candidate(1)])  # type: ignore[arg-type]

    llm = engine(rule, tree, Needs(deterministic=True))
    drafter = llm.engine.drafting.drafters[0]._drafter
    propose = drafter.propose
    drafter.propose = lambda context: (one for one in propose(context))  # type: ignore[method-assign, assignment, return-value]
    (done,) = llm.generate([PROMPT], SamplingParams(max_tokens=8))
    assert sum(done.speculation.drafted) > 0
    assert not caplog.text


@pytest.mark.parametrize("place", [{"node": 1.0}, {"source": 0.0}, {"node": True}], ids=repr)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_a_place_that_is_none(rule: str, place: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    def tree(sequence: DraftSequence) -> TokenTree:
        candidate = Candidate(**{"node": 1} | place)
        return TokenTree((sequence.tokens[-1], DRAFT), (-1, 0), (1.0, 0.5), (candidate,))

    llm = engine(rule, tree, Needs(deterministic=True))
    llm.generate([PROMPT], SamplingParams(max_tokens=3))
    goes_on_plain(llm, rule, caplog.text)


@pytest.mark.parametrize("rule", RATIO)
def test_a_draft_without_a_law_must_be_announced(rule: str, caplog: pytest.LogCaptureFixture) -> None:
    llm = engine(rule, lambda sequence: sequence.builder().chain([DRAFT]).build(), Needs())
    llm.generate([PROMPT], SamplingParams(max_tokens=3))
    goes_on_plain(llm, rule, caplog.text)


@pytest.mark.parametrize("rule", RATIO)
def test_a_sound_law_is_believed(rule: str, caplog: pytest.LogCaptureFixture) -> None:
    def tree(sequence: DraftSequence) -> TokenTree:
        builder = sequence.builder()
        builder.add(0, DRAFT, q=without(3), removed=(4, 7))
        return builder.build()

    done = engine(rule, tree, Needs()).generate([PROMPT], SamplingParams(max_tokens=8, temperature=1.0, seed=1))
    assert sum(done[0].speculation.drafted) > 0
    assert not caplog.text
