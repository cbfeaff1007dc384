"""Ragged batches of the whole engine: three tokens together have the target's joint distribution.

The target starts anew after every three tokens, so one text holds many independent triples, and rounds fall anywhere
across their seams: trees of two levels, what a rejection leaves at either, and dice of many rounds are all in play.

Every registered drafter runs under every ratio rule that is exact for it; the rules whose text equals plain text are
covered by equality, and plain sampling stands here for them.  Unless a test says otherwise it has power 0.99 at a total
variation of 0.02, and false-alarm odds of 1e-8 (:mod:`statistical.chi_square`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from contract.cases import by_id, exact_pairs, heads_of, on_disk, takes_model
from table_model import TableModel

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters._corpora import Corpora
from outrider.drafters.base import DrafterConfig
from outrider.engine import drafting
from outrider.engine.driver import Driver
from outrider.options import Role, roles_of, with_roles
from outrider.verify import make_verifier, registered
from outrider.verify.base import Draws
from statistical.chi_square import check, needed

LENGTH = 3
LEVELS = 2
BLOCKS = 16
BATCH = 256
RATIO_RULES = [
    name for name in registered() if make_verifier(name).draws in (Draws.INDEPENDENT, Draws.WITHOUT_REPLACEMENT)
]


PLAIN = SamplingParams(temperature=1.0)


def widest_pairs() -> list[tuple[str, str]]:
    """Each method under each ratio rule that is exact for it: as a tree where both can branch, else as a chain.

    Which head lookup goes before changes nothing of the rule, and those on disk are for another target than this one.
    """
    pairs = [(case, rule) for case, rule in exact_pairs() if rule in RATIO_RULES and not on_disk(case)]
    allowed = [(case, rule) for case, rule in pairs if by_id(case).most_nodes > 1]
    return [(case, rule) for case, rule in allowed if (f"{case}-tree", rule) not in allowed]


def counts(
    config: DrafterConfig | str,
    rule: str,
    target: TableModel,
    prompts: list[list[int]],
    total: int,
    wish: SamplingParams = PLAIN,
) -> np.ndarray:
    """How often each triple was emitted, over consecutive seeds; two prompt lengths make the batches ragged."""
    drafts = {"good": target.near(4, 1.0), "bad": target.near(5, 3.0)}
    heads = {} if isinstance(config, str) else heads_of(config, target)
    llm = LLM.from_model(target, speculation=Speculation(config, verifier=rule), draft_models=drafts, heads=heads)
    seen: Counter[tuple[int, ...]] = Counter()
    deepest = 0
    for first in range(0, total // BLOCKS + 1, BATCH):
        length = LENGTH * BLOCKS
        params = [replace(wish, max_tokens=length, seed=seed) for seed in range(first, first + BATCH)]
        batch = [prompts[seed % len(prompts)] for seed in range(BATCH)]
        for done in llm.generate(batch, params):
            seen.update(triples(done.token_ids))
            deepest = max(deepest, len(done.speculation.tested))
    assert deepest >= (LEVELS if config != "none" else 0), "the trees were not as deep as the test needs"
    shape = (target.vocabulary,) * LENGTH
    return np.array([seen[index] for index in np.ndindex(shape)]).reshape(shape)


def triples(text: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The blocks of a text."""
    return (text[start : start + LENGTH] for start in range(0, len(text), LENGTH))


def law(target: TableModel, wish: SamplingParams = PLAIN) -> np.ndarray:
    """Exact probability of every block."""
    shape = (target.vocabulary,) * LENGTH
    joint = target.joint([0, 0], LENGTH, wish.temperature, wish.top_k, wish.min_p)
    return np.array([joint[index] for index in np.ndindex(shape)]).reshape(shape)


def setting(vocabulary: int) -> tuple[TableModel, list[list[int]]]:
    """A target, and two prompts of different length after which a block begins."""
    target = TableModel.random(vocabulary, seed=3, block=LENGTH, start=5 % LENGTH)
    return target, [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1]]


COVER = {
    ("draft_model", "rejection"),
    ("lookup_model", "block"),
    ("specinfer-tree", "multi-step"),
    ("draft_model-tree", "recursive"),
    ("ngram", "rejection"),
    ("suffix-tree", "traversal"),
    ("blockwise", "rejection"),
    ("medusa-tree", "multi-step"),
    ("eagle-tree", "recursive"),
    ("eagle2-tree", "traversal"),
    ("eagle3", "block"),
    ("dflash", "rejection"),
    ("dspark", "block"),
}
"""Every rule and every drafter at least once."""


def drafts_with_a_head(case: str) -> bool:
    """Networks in torch take long for the many draws; under their other rules they are left to the thorough run."""
    return Role.HEAD in roles_of(by_id(case))


ORDINARY = [pair for pair in widest_pairs() if pair in COVER or not drafts_with_a_head(pair[0])]


@pytest.mark.parametrize(("case", "rule"), ORDINARY)
def test_joint_distribution(case: str, rule: str) -> None:
    """A quarter of the draws: twice the total variation is sure to be seen.  The thorough run draws them all."""
    check_pair(case, rule, variation=0.04)


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "rule"), widest_pairs())
def test_joint_distribution_in_full(case: str, rule: str) -> None:
    check_pair(case, rule, variation=0.02)


def test_the_cover_holds_every_rule_and_every_drafter() -> None:
    pairs = widest_pairs()
    assert set(pairs) >= COVER
    assert {rule for _, rule in COVER} == {rule for _, rule in pairs}
    assert {method_of(case) for case, _ in COVER} == {method_of(case) for case, _ in pairs}


def method_of(case: str) -> str:
    return case.partition("-")[0]


def check_pair(case: str, rule: str, variation: float) -> None:
    config = by_id(case, "good")
    width = {Role.WIDTH: 2} if case.endswith("-tree") else {}  # of three tokens: one child more would be all there are
    config = with_roles(config, {Role.DEPTH: LEVELS} | width)
    target, prompts = setting(vocabulary=3 if takes_model(case) else 2)
    total = needed(target.vocabulary**LENGTH - 1, variation)
    check(counts(config, rule, target, prompts, total), law(target), variation=variation)


def test_plain_sampling() -> None:
    target, prompts = setting(vocabulary=3)
    total = needed(target.vocabulary**LENGTH - 1)
    check(counts("none", "coupled", target, prompts, total), law(target))


@pytest.mark.parametrize(
    "wish",
    [
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, min_p=0.3),
    ],
)
def test_drafted_positions_use_the_requests_own_settings(wish: SamplingParams) -> None:
    target, prompts = setting(vocabulary=3)
    expected = law(target, wish)
    config = with_roles(by_id("draft_model"), {Role.DEPTH: LEVELS})
    total = needed(int(np.count_nonzero(expected)) - 1, 0.04)
    check(counts(config, "rejection", target, prompts, total, wish), expected, variation=0.04)


def test_a_drafter_that_fails_after_some_tokens_does_not_bias_the_text() -> None:
    """It fails on every path through token 1: dropping what it has drawn would favour the other tokens."""
    target, prompts = setting(vocabulary=2)
    drafts = target.near(4, 1.0)
    drafts.table[:, 1] = torch.nan
    llm = LLM.from_model(
        target,
        speculation=Speculation(by_id("draft_model"), verifier="rejection"),
        draft_models={"good": drafts},
    )
    seen: Counter[tuple[int, ...]] = Counter()
    logging.disable(logging.WARNING)  # thousands of them
    for first in range(0, 12_000, BATCH):
        wishes = [replace(PLAIN, max_tokens=LENGTH + 1, seed=seed) for seed in range(first, first + BATCH)]
        seen.update(done.token_ids[:LENGTH] for done in llm.generate([prompts[0]] * BATCH, wishes))
    logging.disable(logging.NOTSET)
    shape = (target.vocabulary,) * LENGTH
    found = np.array([seen[index] for index in np.ndindex(shape)]).reshape(shape)
    check(found, law(target), variation=0.05)


def repeats(rule: str, seeds: int) -> np.ndarray:
    """How often each token follows the first, in the second output that one engine gives for each seed."""
    target = TableModel(torch.zeros(4, 4, 4), block=1000)
    options = {"corpus_megabytes": 1, "min_match": 1, "min_survival": 0.0}
    llm = LLM.from_model(target, speculation=Speculation("suffix", rule, options))
    drafter = llm.engine.drafting.drafters[0]._drafter
    seen: Counter[int] = Counter()
    with Driver(llm.engine, threaded=False) as driver:
        for seed in range(seeds):
            drafter.corpora = Corpora(1)
            wish = [0, 1, 2, 3, 0, 2], SamplingParams(temperature=1.0, max_tokens=4, seed=seed)
            texts = [driver.complete([wish])[0].token_ids for _ in range(2)]
            seen[texts[1][1]] += 1
    return np.array([seen[token] for token in range(4)])


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal"])
def test_a_seed_that_comes_twice_is_not_drafted_from_its_own_dice(rule: str) -> None:
    """The corpus holds what the first request's dice drew, and the second would throw them again."""
    check(repeats(rule, needed(3, 0.1)), np.full(4, 0.25), variation=0.1)


def test_the_check_sees_a_corpus_that_is_read_under_the_same_dice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "_view", lambda turn, causal, view=drafting._view: view(turn, False))
    with pytest.raises(AssertionError):
        check(repeats("rejection", needed(3, 0.1)), np.full(4, 0.25), variation=0.1)
