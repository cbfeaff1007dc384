"""Ragged batches of the whole engine: three tokens together have the target's joint distribution.

The first token comes with the prompt's pass, before any draft, so the three after it are counted: they hold trees of
two levels, what a rejection leaves at either, and the seam between two rounds.

Every registered drafter runs under every ratio rule that is exact for it; the rules whose text equals plain text are
covered by equality, and plain sampling stands here for them.  Each test has power 0.99 at a total variation of 0.02
and false-alarm odds of 1e-8 (:mod:`statistical.chi_square`).
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from contract.cases import by_id, exact_pairs, takes_model
from table_model import TableModel

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters.base import DrafterConfig, changed
from outrider.verify import make_verifier, registered
from outrider.verify.base import Draws
from statistical.chi_square import check, needed

LENGTH = 3
LEVELS = 2
BATCH = 1024
RATIO_RULES = [
    name for name in registered() if make_verifier(name).draws in (Draws.INDEPENDENT, Draws.WITHOUT_REPLACEMENT)
]


PLAIN = SamplingParams(temperature=1.0)


def widest_pairs() -> list[tuple[str, str]]:
    """Each method under each ratio rule that is exact for it: as a tree where both can branch, else as a chain."""
    allowed = [(case, rule) for case, rule in exact_pairs() if rule in RATIO_RULES and by_id(case).most_nodes > 1]
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
    llm = LLM.from_model(target, speculation=Speculation(config, verifier=rule), draft_models=drafts)
    seen: Counter[tuple[int, ...]] = Counter()
    deepest = 0
    for first in range(0, total, BATCH):
        params = [replace(wish, max_tokens=LENGTH + LEVELS, seed=seed) for seed in range(first, first + BATCH)]
        batch = [prompts[seed % len(prompts)] for seed in range(BATCH)]
        for done in llm.generate(batch, params):
            seen[done.token_ids[1 : 1 + LENGTH]] += 1
            deepest = max(deepest, len(done.speculation.tested))
    assert deepest >= (LEVELS if config != "none" else 0), "the trees were not as deep as the test needs"
    shape = (target.vocabulary,) * LENGTH
    return np.array([seen[index] for index in np.ndindex(shape)]).reshape(shape)


def law(target: TableModel, prompt: list[int], temperature: float = 1.0, top_k: int = 0) -> np.ndarray:
    """Exact probability of the second to fourth token."""
    shape = (target.vocabulary,) * (1 + LENGTH)
    joint = target.joint(prompt, 1 + LENGTH, temperature, top_k)
    return np.array([joint[index] for index in np.ndindex(shape)]).reshape(shape).sum(axis=0)


def setting(vocabulary: int) -> tuple[TableModel, list[list[int]]]:
    """A target and two prompts of different length that end alike; the longer one repeats itself, so lookup drafts."""
    target = TableModel.random(vocabulary, seed=3)
    return target, [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1]]


@pytest.mark.parametrize(("case", "rule"), widest_pairs())
def test_joint_distribution(case: str, rule: str) -> None:
    config = by_id(case, "good")
    depth = {"num_steps": LEVELS} if hasattr(config, "num_steps") else {}
    width = {"topk": 2} if case.endswith("-tree") else {}  # of three tokens: one child more would be all there are
    config = changed(config, depth | width)
    target, prompts = setting(vocabulary=3 if takes_model(case) else 2)
    total = needed(target.vocabulary**LENGTH - 1)
    check(counts(config, rule, target, prompts, total), law(target, prompts[0]))


def test_plain_sampling() -> None:
    target, prompts = setting(vocabulary=3)
    total = needed(target.vocabulary**LENGTH - 1)
    check(counts("none", "coupled", target, prompts, total), law(target, prompts[0]))


@pytest.mark.parametrize(
    "wish", [SamplingParams(temperature=0.5), SamplingParams(temperature=2.0), SamplingParams(temperature=1.0, top_k=2)]
)
def test_drafted_positions_use_the_requests_own_settings(wish: SamplingParams) -> None:
    target, prompts = setting(vocabulary=3)
    expected = law(target, prompts[0], wish.temperature, wish.top_k)
    config = changed(by_id("draft_model"), {"num_steps": LEVELS})
    total = needed(int(np.count_nonzero(expected)) - 1)
    check(counts(config, "rejection", target, prompts, total, wish), expected)


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
    total = needed(target.vocabulary**LENGTH - 1)
    seen: Counter[tuple[int, ...]] = Counter()
    logging.disable(logging.WARNING)  # tens of thousands of them
    for first in range(0, total, BATCH):
        wishes = [replace(PLAIN, max_tokens=LENGTH + LEVELS, seed=seed) for seed in range(first, first + BATCH)]
        seen.update(done.token_ids[1 : 1 + LENGTH] for done in llm.generate([prompts[0]] * BATCH, wishes))
    logging.disable(logging.NOTSET)
    shape = (target.vocabulary,) * LENGTH
    check(np.array([seen[index] for index in np.ndindex(shape)]).reshape(shape), law(target, prompts[0]))
