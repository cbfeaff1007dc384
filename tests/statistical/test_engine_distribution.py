"""Ragged batches of the whole engine: three tokens together have the target's joint distribution.

Every registered drafter runs under every ratio rule that is exact for it; the rules whose text equals plain text are
covered by equality, and plain sampling stands here for them.  Each test has power 0.99 at a total variation of 0.02
and false-alarm odds of 1e-8 (:mod:`statistical.chi_square`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from contract.cases import by_id, exact_pairs, takes_model
from table_model import TableModel

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters.base import DrafterConfig, changed
from outrider.verify import make_verifier, registered
from outrider.verify.base import Draws, KeyedDice
from statistical.chi_square import check, differs, needed

LENGTH = 3
BATCH = 1024
RATIO_RULES = [
    name for name in registered() if make_verifier(name).draws in (Draws.INDEPENDENT, Draws.WITHOUT_REPLACEMENT)
]


def widest_pairs() -> list[tuple[str, str]]:
    """Each method under each ratio rule that is exact for it: as a tree where both can branch, else as a chain."""
    allowed = [(case, rule) for case, rule in exact_pairs() if rule in RATIO_RULES and by_id(case).most_nodes > 1]
    return [(case, rule) for case, rule in allowed if (f"{case}-tree", rule) not in allowed]


def counts(
    config: DrafterConfig | str, rule: str, target: TableModel, prompts: list[list[int]], total: int
) -> np.ndarray:
    """How often each triple was emitted, over consecutive seeds; two prompt lengths make the batches ragged."""
    drafts = {"good": target.near(4, 1.0), "bad": target.near(5, 3.0)}
    llm = LLM.from_model(target, speculation=Speculation(config, verifier=rule), draft_models=drafts)
    seen: Counter[tuple[int, ...]] = Counter()
    for first in range(0, total, BATCH):
        params = [SamplingParams(temperature=1.0, max_tokens=LENGTH, seed=seed) for seed in range(first, first + BATCH)]
        batch = [prompts[seed % len(prompts)] for seed in range(BATCH)]
        seen.update(done.token_ids for done in llm.generate(batch, params))
    shape = (target.vocabulary,) * LENGTH
    return np.array([seen[index] for index in np.ndindex(shape)]).reshape(shape)


def law(target: TableModel, prompt: list[int]) -> np.ndarray:
    shape = (target.vocabulary,) * LENGTH
    joint = target.joint(prompt, LENGTH)
    return np.array([joint[index] for index in np.ndindex(shape)]).reshape(shape)


def setting(vocabulary: int) -> tuple[TableModel, list[list[int]]]:
    """A target and two prompts of different length that end alike; the longer one repeats itself, so lookup drafts."""
    target = TableModel.random(vocabulary, seed=3)
    return target, [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1]]


@pytest.mark.parametrize(("case", "rule"), widest_pairs())
def test_joint_distribution(case: str, rule: str) -> None:
    config = by_id(case, "good")
    if case.endswith("-tree"):
        config = changed(config, {"topk": 2})  # of three tokens: one child more would be all there are
    target, prompts = setting(vocabulary=3 if takes_model(case) else 2)
    total = needed(target.vocabulary**LENGTH - 1)
    check(counts(config, rule, target, prompts, total), law(target, prompts[0]))


def test_plain_sampling() -> None:
    target, prompts = setting(vocabulary=3)
    total = needed(target.vocabulary**LENGTH - 1)
    check(counts("none", "coupled", target, prompts, total), law(target, prompts[0]))


def test_noise_named_by_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same rule with dice that a later round throws again."""
    target, prompts = setting(vocabulary=3)
    monkeypatch.setattr(KeyedDice, "_round", property(lambda self: 0, lambda self, value: None), raising=False)
    assert differs(counts(by_id("draft_model"), "block", target, prompts, 40_000), law(target, prompts[0]))
