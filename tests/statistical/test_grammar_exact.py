"""Under a grammar every rule keeps the target's masked distribution, forced drafts and pruned ones included."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
from contract.cases import by_id, is_exact
from oracles import Scripted
from table_model import TableModel
from tokenizers import decoders, models

from outrider import LLM, Grammar, SamplingParams, Speculation
from outrider.drafters.base import DrafterConfig, DraftSequence, Needs
from outrider.models.files.tokenizer import Tokenizer
from outrider.options import Role, with_roles
from outrider.tree import TokenTree
from statistical.chi_square import check, needed

LANGUAGE = ["aa", "aba", "abb", "accca", "acccb", "bcc", "bca", "ca", "cbab"]
"""``ccc`` after ``a`` is forced, and so is ``bab`` after ``cb``."""
VARIATION = 0.1
BATCH = 256


def letters() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 2}, merges=[]))
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, name="letters")


def law(target: TableModel, prompt: list[int]) -> np.ndarray:
    """Exact probability of every text of the language: each token from what the language leaves of the target's law."""
    found = []
    for text in LANGUAGE:
        said, chance = list(prompt), 1.0
        for place, letter in enumerate(text):
            left = {"abc".index(other[place]) for other in LANGUAGE if other[:place] == text[:place] != other}
            left |= {"abc".index(letter)}
            p = torch.softmax(target.table[said[-2], said[-1]].double(), 0)
            chance *= float(p["abc".index(letter)] / p[sorted(left)].sum())
            said.append("abc".index(letter))
        found.append(chance)
    assert abs(sum(found) - 1.0) < 1e-9
    return np.array(found)


def counts(
    config: DrafterConfig | Scripted, rule: str, target: TableModel, prompt: list[int]
) -> tuple[np.ndarray, int]:
    """How often each text was written, and how many forced drafts were accepted."""
    drafts = {"good": target.near(4, 1.0), "bad": target.near(5, 3.0)}
    llm = LLM.from_model(target, letters(), speculation=Speculation(config, verifier=rule), draft_models=drafts)  # type: ignore[arg-type]
    wish = SamplingParams(temperature=1.0, max_tokens=9, grammar=llm.compile_grammar(Grammar.choice(LANGUAGE)))
    seen, forced = Counter[str](), 0
    for first in range(0, needed(len(LANGUAGE) - 1, VARIATION), BATCH):
        wishes = [replace(wish, seed=seed) for seed in range(first, first + BATCH)]
        for done in llm.generate([prompt] * BATCH, wishes):
            seen[done.text] += 1
            forced += done.speculation.forced
    assert set(seen) <= set(LANGUAGE)
    return np.array([seen[text] for text in LANGUAGE]), forced


def guessing(sequence: DraftSequence) -> TokenTree:
    """Certain drafts of all kinds: a forbidden one with a child, one that is right or wrong, and an allowed one."""
    builder = sequence.builder()
    for token in (2, 0, 1)[: min(3, sequence.nodes - 2)]:
        if sequence.depth > 1:
            child = builder.add(0, token)
            if len(builder) < sequence.nodes:
                builder.add(child, token)
    return builder.build()


CERTAIN = Scripted(guessing, most_nodes=9, needs=Needs(deterministic=True, branching=True))
CASES = [
    *[(case, rule) for case in ("none", "draft_model") for rule in ("coupled", "point-mass", "rejection", "block")],
    *[("draft_model-tree", rule) for rule in ("multi-step", "recursive", "traversal")],
    *[("certain", rule) for rule in ("multi-step", "recursive", "traversal")],
]


@pytest.mark.parametrize(("case", "rule"), CASES)
def test_masked_distribution(case: str, rule: str) -> None:
    config: DrafterConfig | Scripted = CERTAIN
    if case != "certain":
        config = by_id(case)
        config = with_roles(config, {Role.DEPTH: 2} | ({Role.WIDTH: 2} if case.endswith("-tree") else {}))
        assert is_exact(config, rule)
    target = TableModel.random(3, seed=3)
    seen, forced = counts(config, rule, target, [1, 0, 1])
    assert forced > 0
    check(seen, law(target, [1, 0, 1]), variation=VARIATION)


def test_the_check_sees_a_mask_that_came_after_the_choice() -> None:
    """Texts of the free target that happen to be of the language have another law."""
    target = TableModel.random(3, seed=3)
    free = []
    for text in LANGUAGE:
        said, chance = [1, 0, 1], 1.0
        for letter in text:
            chance *= float(torch.softmax(target.table[said[-2], said[-1]].double(), 0)["abc".index(letter)])
            said.append("abc".index(letter))
        free.append(chance)
    seen, _ = counts(by_id("draft_model"), "rejection", target, [1, 0, 1])
    with pytest.raises(AssertionError):
        check(seen, np.array(free) / sum(free), variation=VARIATION)
