"""Text with speculation is text without it: every method × rule, every budget, oracle drafters, sampled and greedy."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from oracles import Scripted, empty, random_trees, right, wrong
from tiny import VOCABULARY

from contract.cases import BACKENDS, LOSSLESS, PROMPTS, by_id, configs, exact_pairs, is_exact, make, method_cases
from outrider import SamplingParams, Speculation
from outrider.errors import ConfigError
from outrider.options import Role, roles_of, with_roles
from outrider.verify import make_verifier, repeats_plain_text

GREEDY = SamplingParams(max_tokens=24)
SETTINGS = {
    "greedy": GREEDY,
    "temperature": SamplingParams(max_tokens=24, temperature=1.0, seed=11),
    "truncated": SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, top_k=20, min_p=0.02, seed=5),
    "penalties": SamplingParams(
        max_tokens=24,
        temperature=0.7,
        seed=3,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.3,
    ),
    "control": SamplingParams(
        max_tokens=24,
        temperature=1.2,
        seed=9,
        logit_bias={3: -100.0, 7: 2.0},
        bad_words=((1, 2), (5,)),
        allowed_token_ids=tuple(range(1, 60)),
        min_tokens=6,
        stop_token_ids=(8, 20, 21),
    ),
    "processor": SamplingParams(
        max_tokens=24,
        temperature=1.0,
        seed=2,
        processors=(lambda history, logits: logits.roll(history[-1] % 3) + 0.01 * len(history),),
    ),
}


@cache
def plain(setting: str, backend: str = "hf") -> list[tuple[int, ...]]:
    """What the target gives alone; computed one request at a time."""
    llm = make("none", backend=backend)
    return [llm.generate(prompt, SETTINGS[setting])[0].token_ids for prompt in PROMPTS]


def answers(setting: str, backend: str = "hf") -> dict[tuple[int, ...], tuple[int, ...]]:
    return {tuple(prompt): text for prompt, text in zip(PROMPTS, plain(setting, backend), strict=True)}


def target_only_rules() -> list[str]:
    """Rules whose text is a function of target, prompt, parameters and seed."""
    return [name for name in LOSSLESS if repeats_plain_text(make_verifier(name))]


def assert_clean(llm: object) -> None:
    engine = llm.driver.between_rounds(lambda engine: engine)  # type: ignore[attr-defined]
    assert engine.idle
    engine.pool.check()
    for cache_ in engine.pool._caches.values():
        assert cache_.free_rows == cache_.slots, "pages are held after every request ended"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize(("case", "model"), method_cases())
def test_greedy_text_is_plain_text(case: str, model: str, rule: str, backend: str) -> None:
    config = by_id(case, model)
    if not is_exact(config, rule):
        with pytest.raises(ConfigError, match="not exact"):
            make(config, verifier=rule, backend=backend)
        return
    llm = make(config, verifier=rule, backend=backend)
    done = llm.generate(PROMPTS, GREEDY)
    assert [c.token_ids for c in done] == plain("greedy", backend)
    assert any(c.speculation.drafted for c in done) == (config.most_nodes > 1), "nothing was drafted"
    assert_clean(llm)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", target_only_rules())
@pytest.mark.parametrize(("case", "model"), method_cases())
def test_seeded_text_is_plain_text(case: str, model: str, rule: str, setting: str, backend: str) -> None:
    llm = make(by_id(case, model), verifier=rule, backend=backend)
    assert [c.token_ids for c in llm.generate(PROMPTS, SETTINGS[setting])] == plain(setting, backend)
    assert_clean(llm)


STEP_BY_STEP = [
    case for case, config in configs("good") if Role.MIN_SURVIVAL in roles_of(config) and not case.endswith("-block")
]
"""Methods that look at how likely a draft is; the length of a block is its head's own choice."""


@pytest.mark.parametrize("setting", ["greedy", "temperature"])
@pytest.mark.parametrize(
    ("case", "rule"),
    [
        (case, rule)
        for case, rule in exact_pairs()
        if case in STEP_BY_STEP and rule in ("coupled", "point-mass", "rejection")
    ],
)
def test_drafts_that_are_not_worth_a_row_are_left_out(case: str, rule: str, setting: str) -> None:
    """Fewer are drafted, each as likely as was asked; under a ratio rule all the same are, and no text changes."""
    drafted, texts = [], set()
    for least in (0.0, 0.5):
        llm = make(with_roles(by_id(case), {Role.MIN_SURVIVAL: least}), verifier=rule)
        drafter = llm.engine.drafting.drafters[0]
        trees, propose = [], drafter.propose
        drafter.propose = lambda context: trees.append(propose(context)) or trees[-1]  # noqa: B023
        done = llm.generate(PROMPTS, SETTINGS[setting])
        texts.add(tuple(c.token_ids for c in done))
        if not by_id(case).needs.deterministic:  # what is looked up has a threshold of its own
            assert min(min(tree.survival) for batch in trees for tree in batch) >= least
        drafted.append(sum(sum(c.speculation.drafted) for c in done))
        assert_clean(llm)
    assert len(texts) == 1
    if setting == "greedy" or rule in target_only_rules():
        assert texts == {tuple(plain(setting))}
    certain = rule == "point-mass" and setting == "greedy"  # the law of a draft at temperature 0 is one token
    if rule in target_only_rules() and not certain:
        assert drafted[0] > drafted[1]
    else:
        assert len(set(drafted)) == 1, "how much is drafted depended on what was drawn"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("case", "rule"), exact_pairs())
def test_a_seed_reproduces_the_text_of_every_rule(case: str, rule: str, backend: str) -> None:
    params = dataclasses.replace(SETTINGS["temperature"], max_tokens=12)
    first = [c.token_ids for c in make(by_id(case), verifier=rule, backend=backend).generate(PROMPTS, params)]
    fresh = make(by_id(case), verifier=rule, backend=backend)
    alone = [fresh.generate(prompt, params)[0].token_ids for prompt in PROMPTS[::2]]
    assert first[::2] == alone, "the text depends on what else is in the batch"


@pytest.mark.parametrize("rule", ["coupled", "rejection", "traversal"])
@pytest.mark.parametrize(
    ("steps", "tokens"), [(0, 0), (1, 1), (2, 5), (3, 0), (4, 2), (5, 3), (8, 8), (12, 3), (2, 32)]
)
@pytest.mark.parametrize(
    "case", ["ngram", "suffix", "draft_model", "draft_model-tree", "specinfer", "lookup_model-tree"]
)
def test_every_budget(case: str, steps: int, tokens: int, rule: str) -> None:
    config = by_id(case, "good")
    if not is_exact(config, rule):
        return
    config = with_roles(config, {Role.DEPTH: steps, Role.TOKENS: tokens})
    llm = make(config, verifier=rule)
    done = llm.generate(PROMPTS, GREEDY)
    assert [c.token_ids for c in done] == plain("greedy")
    for completion in done:
        stats = completion.speculation
        assert sum(stats.drafted) <= (config.most_nodes - 1) * stats.rounds
        if config.most_nodes == 1:
            assert stats.mean_accepted_length == 1.0
    if tokens > 0 and roles_of(config).keys() & {Role.MODEL, Role.MODEL_OR_HEAD}:
        assert config.most_nodes - 1 <= max(tokens, 4 * steps)
    if Role.MODELS in roles_of(config) and tokens > 0:
        assert config.most_nodes - 1 == tokens


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 9, 32])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("oracle", ["right", "wrong", "random", "half right", "empty"])
def test_oracle_drafters(oracle: str, setting: str, nodes: int, backend: str) -> None:
    truth = answers(setting, backend)
    script = {
        "right": right(truth),
        "wrong": wrong(truth, VOCABULARY),
        "random": random_trees(VOCABULARY, 1),
        "half right": random_trees(VOCABULARY, 2, truth),
        "empty": empty,
    }[oracle]
    llm = make(Scripted(script, most_nodes=nodes), backend=backend)
    done = llm.generate(PROMPTS, SETTINGS[setting])
    assert [c.token_ids for c in done] == plain(setting, backend)
    assert_clean(llm)
    stats = done[0].speculation
    if oracle == "right" and nodes > 1:
        assert stats.acceptance_rate == 1.0
        assert stats.mean_accepted_length > 1.0
    if oracle == "wrong":
        assert stats.acceptance_rate == 0.0
        assert stats.mean_accepted_length == 1.0


def test_completions_of_one_prompt_differ_and_each_reproduces() -> None:
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=4, n=5)
    alone = make("none").generate(PROMPTS[0], params)[0]
    drafted = make(by_id("draft_model", "bad")).generate(PROMPTS[0], params)[0]
    texts = [choice.token_ids for choice in alone.choices]
    assert texts == [choice.token_ids for choice in drafted.choices]
    assert len(set(texts)) == 5
    assert (
        texts[0]
        == make("none").generate(PROMPTS[0], SamplingParams(max_tokens=16, temperature=1.0, seed=4))[0].token_ids
    )


def test_a_drawn_seed_is_reported_and_reproduces() -> None:
    llm = make(by_id("ngram"))
    first = llm.generate(PROMPTS[0], SamplingParams(max_tokens=16, temperature=1.5))[0]
    other = llm.generate(PROMPTS[0], SamplingParams(max_tokens=16, temperature=1.5))[0]
    assert first.choices[0].seed != other.choices[0].seed
    again = make("none").generate(
        PROMPTS[0], SamplingParams(max_tokens=16, temperature=1.5, seed=first.choices[0].seed)
    )
    assert again[0].token_ids == first.token_ids


def test_the_suite_sees_a_rule_that_is_not_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a rule that accepts every draft must fail the comparison above."""
    from outrider.verify.base import Verdict
    from outrider.verify.coupled import Coupled

    def accept_everything(self: Coupled, tree, rows):  # type: ignore[no-untyped-def]
        node, path = 0, []
        while tree.children[node]:
            node = tree.children[node][0]
            path.append(node)
        return Verdict.of(tree, path, rows.tokens[node])

    monkeypatch.setattr(Coupled, "accept", accept_everything)
    llm = make(by_id("draft_model", "bad"))
    assert [c.token_ids for c in llm.generate(PROMPTS, GREEDY)] != plain("greedy")


def test_speculation_can_be_switched_off_for_one_request() -> None:
    llm = make(by_id("draft_model"))
    on, off = llm.generate([PROMPTS[0]] * 2, [GREEDY, dataclasses.replace(GREEDY, speculate=False)])
    assert on.token_ids == off.token_ids
    assert on.speculation.mean_accepted_length > 1.0
    assert off.speculation.drafted == []


def test_speculation_takes_a_config_or_a_name() -> None:
    config = by_id("ngram")
    assert Speculation(config, options={"num_draft_tokens": 3}).drafter_config().most_nodes == 4
    assert Speculation("NGRAM", options={"num_draft_tokens": 3}).drafter_config().most_nodes == 4
