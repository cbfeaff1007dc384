"""Medusa and blockwise drafting: what is proposed is what the heads say of the row before the anchor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from captured import TinyTarget
from contract.cases import LOSSLESS
from parallel_heads import DEPTHS, SOME, checkpoint
from tiny import tiny_model, tiny_native

from outrider import LLM, SamplingParams, Speculation
from outrider.config import CacheConfig
from outrider.drafters import config_class
from outrider.drafters._growth import StaticTree
from outrider.drafters._parallel_drafter import ParallelDrafter
from outrider.drafters.medusa import CHANCES, Medusa
from outrider.errors import ConfigError, ModelError
from outrider.heads.checkpoint import write_head
from outrider.heads.loading import read_head
from outrider.heads.runner import ready
from outrider.kernels.native import cpu
from outrider.verify import check_exact, make_verifier

PROMPTS = [[1, 2, 3, 4, 5, 1, 2, 3], [7] * 6, [9, 8, 7, 6, 5], [11], [3, 1, 4, 1, 5, 9, 2, 6]]
BACKENDS = {"hf": tiny_model, "native": tiny_native}
CASES = {
    "blockwise": ("blockwise", {"num_draft_tokens": DEPTHS}),
    "medusa": ("medusa", {"min_survival": 0.0}),
    "medusa-tree": ("medusa", {"topk": 3, "min_survival": 0.0}),
    "medusa-wide": ("medusa", {"topk": 10, "num_draft_tokens": 20, "num_steps": 3, "min_survival": 0.0}),
}
SAMPLED = {
    "greedy": SamplingParams(max_tokens=24),
    "sampled": SamplingParams(max_tokens=24, temperature=1.0, seed=11),
    "penalties": SamplingParams(
        max_tokens=24, temperature=0.7, seed=3, repetition_penalty=1.3, presence_penalty=0.5, bad_words=((1, 2), (5,))
    ),
}


def llm(case: str, backend: str = "hf", verifier: str = "coupled", **more: Any) -> LLM:
    method, options = CASES[case]
    target = BACKENDS[backend]()
    config = config_class(method)(head="tiny", **options)
    heads = {"tiny": checkpoint(method, target)}
    return LLM.from_model(target, speculation=Speculation(config, verifier=verifier), heads=heads, **more)


def plain(backend: str, setting: str) -> list[tuple[int, ...]]:
    alone = LLM.from_model(BACKENDS[backend](), speculation="none")
    return [alone.generate(prompt, SAMPLED[setting])[0].token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("setting", SAMPLED)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_text_is_the_targets_own(backend: str, case: str, setting: str, caplog: pytest.LogCaptureFixture) -> None:
    speculating = llm(case, backend)
    texts = [completion.token_ids for completion in speculating.generate(PROMPTS, SAMPLED[setting])]
    assert texts == plain(backend, setting)
    assert [record for record in caplog.records if record.name == "outrider.engine.guard"] == []


@pytest.mark.parametrize("case", CASES)
def test_greedy_text_is_the_targets_own_under_every_exact_rule(case: str) -> None:
    method, options = CASES[case]
    needs = config_class(method)(**options).needs
    for rule in LOSSLESS:
        try:
            check_exact(make_verifier(rule), method, needs)
        except ConfigError:
            continue
        speculating = llm(case, verifier=rule)
        assert [speculating.generate(prompt, SAMPLED["greedy"])[0].token_ids for prompt in PROMPTS] == plain(
            "hf", "greedy"
        )


@pytest.mark.parametrize("case", CASES)
def test_drafts_are_tested_and_some_accepted(case: str) -> None:
    stats = [llm(case).generate(prompt, SAMPLED["greedy"])[0].speculation for prompt in PROMPTS]
    assert sum(sum(one.drafted) for one in stats) > 0
    assert sum(sum(one.accepted) for one in stats) > 0


def served(method: str, target: Any) -> Any:
    """A head as drafting runs it, on the kernels where there are any."""
    head = checkpoint(method, target).build()
    if hasattr(head, "share"):
        head.share(target)
        head.give_projection()
    return ready(head, target)


@pytest.mark.skipif(cpu is None, reason="no kernels were built")
@pytest.mark.parametrize("method", ["blockwise", "medusa"])
def test_heads_on_the_kernels_say_nearly_what_they_say_in_torch(method: str) -> None:
    target = tiny_model()
    whole = checkpoint(method, target).build()
    if hasattr(whole, "share"):
        whole.share(target)
    rows = torch.randn(5, target.width, generator=torch.Generator().manual_seed(1))
    expected, found = whole(rows), served(method, target)(rows)
    assert found.shape == expected.shape
    assert 0.0 < float((found - expected).norm() / expected.norm()) < 0.15, "not packed, or packed wrongly"


@pytest.mark.parametrize("case", ["blockwise", "medusa-tree"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "after a cached prefix"])
def test_proposals_are_the_heads_best_guesses(case: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tree of a greedy run holds, level by level, the best guesses from the target's own row before the anchor."""
    method, _ = CASES[case]
    target = tiny_model()
    head = served(method, target)
    seen: list[tuple[list[int], Any]] = []
    original = ParallelDrafter.propose

    def propose(self: ParallelDrafter, context: Any) -> Any:
        trees = original(self, context)
        seen.extend((list(one.tokens), tree) for one, tree in zip(context.sequences, trees, strict=True))
        return trees

    monkeypatch.setattr(ParallelDrafter, "propose", propose)
    speculating = llm(case, cache=CacheConfig(page_size=4) if shared else None)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    for end in ([1], [2, 3]) if shared else ([1],):
        seen.clear()
        speculating.generate(prompt + end, SAMPLED["greedy"])
    drafted = [(tokens, tree) for tokens, tree in seen if len(tree) > 1]
    assert len(drafted) >= len(seen) - 1
    for tokens, tree in drafted:
        hidden = final_row(tokens[:-1])
        ranked = SOME[head(hidden).topk(3).indices]
        for node in range(1, len(tree)):
            assert tree.tokens[node] in ranked[tree.depths[node] - 1].tolist()
        firsts = [tree.tokens[node] for node in range(1, len(tree)) if tree.depths[node] == 1]
        assert ranked[0, 0] in firsts


def final_row(tokens: list[int]) -> torch.Tensor:
    """What the target's head reads at the last of these tokens."""
    hidden = TinyTarget().module(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return hidden[-1][0, -1]


def test_the_tree_is_the_likeliest() -> None:
    config = Medusa(topk=3, num_steps=2, num_draft_tokens=6, min_survival=0.0)
    shape = config.shape(((0.5, 0.3, 0.1), (0.6, 0.2, 0.1)))
    assert shape == StaticTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)))  # 0.5 0.3 0.1 · 0.3 0.1 0.18
    assert shape.depth == 2


def test_a_head_brings_its_own_tree() -> None:
    target = tiny_model()
    own = checkpoint("medusa", target, chances=True)
    config = Medusa(head="tiny", topk=3, num_draft_tokens=5, num_steps=3)
    drafter = LLM.from_model(target, speculation=Speculation(config), heads={"tiny": own})
    assert drafter.generate(PROMPTS[0], SAMPLED["greedy"])[0].token_ids == plain("hf", "greedy")[0]
    assert set(config.shape(own.config.chances).nodes) == {(0,), (1,), (2,), (0, 0), (0, 1)}
    assert set(config.shape(((0.9, 0.0), (0.9, 0.0), (0.9, 0.0))).nodes) >= {(0,), (0, 0), (0, 0, 0)}


def test_chances_by_default_fall() -> None:
    for level in CHANCES:
        assert list(level) == sorted(level, reverse=True)
        assert sum(level) < 1
    assert len({len(level) for level in CHANCES}) == 1
    assert Medusa(num_steps=0).shape(CHANCES).nodes == ()
    assert Medusa(num_steps=7, topk=2).shape(CHANCES).depth >= 5


@pytest.mark.parametrize("method", ["medusa", "blockwise"])
def test_heads_survive_the_disk(method: str, tmp_path: Path) -> None:
    target = tiny_model()
    write_head(tmp_path / "head", checkpoint(method, target, chances=True))
    config = config_class(method)(head=str(tmp_path / "head"))
    read = LLM.from_model(target, speculation=Speculation(config))
    assert read.generate(PROMPTS[0], SAMPLED["greedy"])[0].token_ids == plain("hf", "greedy")[0]
    found = read_head(tmp_path / "head")
    assert found.config == dataclasses.replace(found.config)
    assert "projection" not in found.tensors


@pytest.mark.parametrize("method", ["medusa", "blockwise"])
def test_a_head_that_is_missing_or_of_another_target_is_refused(method: str) -> None:
    with pytest.raises(ConfigError, match=f"{method} needs a trained head; name its folder as head$"):
        LLM.from_model(tiny_model(), speculation=Speculation(config_class(method)()))
    with pytest.raises(ModelError, match="there is no head"):
        LLM.from_model(tiny_model(), speculation=Speculation(config_class(method)(head="nowhere")))
    foreign = checkpoint(method, tiny_model())
    foreign = dataclasses.replace(foreign, target=dataclasses.replace(foreign.target, width=48))
    with pytest.raises(ConfigError, match="hidden size is 48, and this one's is 32"):
        LLM.from_model(
            tiny_model(), speculation=Speculation(config_class(method)(head="tiny")), heads={"tiny": foreign}
        )
