"""What each request wishes of speculation: it is served so beside all others, and no wish changes a text."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from tiny import tiny_model

from contract.cases import BACKENDS, LOSSLESS, PROMPTS, by_id, draft_models, exact_pairs, heads_of, is_exact
from contract.test_lossless import SETTINGS, assert_clean, plain
from outrider import LLM, SamplingParams, Speculation
from outrider.config import SpeculationDefault
from outrider.drafters import draftless
from outrider.errors import ConfigError

LOADED = ["ngram", "suffix", "none", "draft_model"]
RULES = sorted({rule for case, rule in exact_pairs() if case == "suffix"})


def llm(main: str = "suffix", *others: Any, rule: str = "coupled", backend: str = "hf") -> LLM:
    target = BACKENDS[backend](0)
    return LLM.from_model(
        target,
        speculation=Speculation(by_id(main), verifier=rule),
        algorithms=[by_id(other) for other in others] or None,
        draft_models=draft_models(backend),
        heads=heads_of(by_id(main), target),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", ["greedy", "temperature", "penalties"])
def test_every_mix_of_wishes_in_one_batch_gives_the_same_texts(setting: str, backend: str) -> None:
    made = llm("suffix", "ngram", "none", "draft_model", backend=backend)
    wishes = [
        {"speculate": speculate, "algorithm": algorithm, "max_draft_tokens": most}
        for speculate, algorithm, most in itertools.product((None, True, False), (None, *LOADED), (None, 0, 1, 5))
    ]
    random.Random(3).shuffle(wishes)
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(len(wishes))]
    done = made.generate(prompts, [{**vars(SETTINGS[setting]), **wish} for wish in wishes])
    texts = plain(setting, backend)
    assert [one.token_ids for one in done] == [texts[number % len(PROMPTS)] for number in range(len(wishes))]
    served = set()
    for one, wish in zip(done, wishes, strict=True):
        stats, (choice,) = one.speculation, one.choices
        if wish["speculate"] is False or wish["max_draft_tokens"] == 0:
            assert not sum(stats.drafted)
            assert choice.algorithm is None
        elif wish["algorithm"] != "none":
            assert choice.algorithm in (wish["algorithm"] or "suffix", None)
        if wish["max_draft_tokens"] is not None:
            assert sum(stats.drafted) <= wish["max_draft_tokens"] * stats.rounds
        served.add(choice.algorithm)
    assert served == {"suffix", "ngram", "draft_model", None}
    assert_clean(made)


@pytest.mark.parametrize("rule", RULES)
def test_a_method_is_loaded_by_default_where_the_rule_is_exact_for_it(rule: str) -> None:
    made = llm("suffix", rule=rule)
    assert made.engine.drafting.methods[0] == "suffix"
    assert set(made.engine.drafting.methods) <= {each.method for each in draftless()}
    for name in made.engine.drafting.methods:
        (done,) = made.generate([PROMPTS[0]], SETTINGS["greedy"], algorithm=name)
        assert done.token_ids == plain("greedy")[0]


def test_a_plain_engine_drafts_for_those_who_ask() -> None:
    made = LLM.from_model(tiny_model(), speculation=None)
    alone, asked = made.generate([PROMPTS[1]] * 2, [SETTINGS["greedy"], {"algorithm": "NGRAM", "max_tokens": 24}])
    assert alone.token_ids == asked.token_ids
    assert not sum(alone.speculation.drafted)
    assert sum(asked.speculation.drafted)
    assert asked.choices[0].algorithm == "ngram"


def test_an_unknown_method_is_refused_at_admission_with_those_there_are() -> None:
    made = llm("suffix", "ngram")
    with pytest.raises(ConfigError, match="'eagle3' is not loaded in this engine, which has: suffix, ngram"):
        made.generate([PROMPTS[0]], SETTINGS["greedy"], algorithm="eagle3")
    with pytest.raises(ConfigError, match="suffix, ngram"):
        made.engine.set_speculation(SpeculationDefault(algorithm="eagle3"))
    assert made.engine.idle


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["ngram", "ngram"], "ngram is loaded twice"),
        ([by_id("suffix")], "suffix is loaded twice"),
        (["frobnicate"], "no drafting method 'frobnicate'"),
    ],
)
def test_what_cannot_be_loaded_is_refused(given: list[Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LLM.from_model(tiny_model(), speculation="suffix", algorithms=given)


@pytest.mark.parametrize("rule", [rule for rule in LOSSLESS if not is_exact(by_id("suffix-tree"), rule)])
def test_a_method_that_the_rule_is_not_exact_for_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        LLM.from_model(tiny_model(), speculation=Speculation("none", rule), algorithms=[by_id("suffix-tree")])


def test_the_main_method_named_again_is_loaded_once() -> None:
    made = LLM.from_model(tiny_model(), speculation="suffix", algorithms=("ngram", "suffix"))
    assert made.engine.drafting.methods == ("suffix", "ngram")


def test_the_default_is_changed_between_rounds_and_a_request_overrides_it() -> None:
    made = llm("suffix", "ngram")
    engine, wish = made.engine, SamplingParams(max_tokens=40, ignore_eos=True)
    expected = LLM.from_model(tiny_model(), speculation=None).generate([PROMPTS[1]], wish)[0].token_ids

    def run(**options: Any) -> tuple[int, str | None]:
        (done,) = made.generate([PROMPTS[1]], wish, **options)
        assert done.token_ids == expected
        return max(done.speculation.drafted, default=0) and len(done.speculation.drafted), done.choices[0].algorithm

    depth, name = run()
    assert depth > 2
    assert name == "suffix"
    engine.set_speculation(SpeculationDefault(enabled=False))
    assert run() == (0, None)
    assert run(speculate=True)[1] == "suffix"
    engine.set_speculation(SpeculationDefault(algorithm="ngram", max_draft_tokens=2))
    assert run() == (2, "ngram")
    assert run(algorithm="suffix", max_draft_tokens=3) == (3, "suffix")
    assert run(speculate=False) == (0, None)


def test_a_default_that_changes_in_every_round_changes_no_text() -> None:
    made = llm("suffix", "ngram", "draft_model")
    dice, engine = random.Random(5), made.engine
    requests = [engine.submit(prompt, SETTINGS["temperature"]) for prompt in PROMPTS]
    while not engine.idle:
        algorithm = dice.choice([None, *engine.drafting.methods])
        engine.set_speculation(SpeculationDefault(dice.random() < 0.8, algorithm, dice.choice([None, 1, 4])))
        engine.step()
    assert [tuple(request.output_ids) for request in requests] == plain("temperature")
    assert {name for request in requests for name in request.methods} == {"suffix", "ngram", "draft_model"}


@pytest.mark.parametrize("bad", [{"enabled": 1}, {"algorithm": 3}, {"max_draft_tokens": 0}, {"max_draft_tokens": 1.5}])
def test_a_default_that_is_none_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SpeculationDefault(**bad)
