"""SmolLM2-135M-Instruct in float32: text is identical with every drafter, greedy and seeded."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest
import torch
from tiny_heads import tiny_head

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters import config_class, methods
from outrider.drafters._trained import head_config
from outrider.drafters.base import DrafterConfig
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.kv.pool import KVPool
from outrider.models.backends import LoadOptions, load_model
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.loading import find
from outrider.models.shipped_heads import shipped_heads
from outrider.options import Role, roles_of
from outrider.tree import SequenceRows, TreeBatch
from outrider.verify import registered
from outrider.verify.base import Draws

pytestmark = pytest.mark.real

HEADS = Path(__file__).parents[2] / "assets" / "heads"

QUESTIONS = [
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "Write a Python function that adds two numbers, then write it again with a docstring.",
    "Name the colours of the rainbow 🌈 and count from 95 to 105.",
]
SETTINGS = {
    "greedy": SamplingParams(max_tokens=40),
    "seeded": SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, seed=7),
    "penalised": SamplingParams(max_tokens=40, temperature=1.0, seed=3, repetition_penalty=1.1, top_k=50),
}


BACKENDS = ("hf", "native")


JUDGED_BY_DICE = [name for name, rule in registered().items() if rule.lossless and rule.draws is not Draws.PERTURBED]


@cache
def loaded(backend: str) -> tuple[TargetModel, Tokenizer]:
    return load_model("SmolLM2-135M", LoadOptions(backend=backend))


@cache
def heads(method: str, backend: str) -> dict[str, HeadCheckpoint]:
    """An untrained head where the method drafts with one."""
    return {"untrained": tiny_head(method, loaded(backend)[0])} if Role.HEAD in roles_of(config_class(method)) else {}


def serving(speculation: str | DrafterConfig, verifier: str = "coupled", backend: str = "hf") -> LLM:
    target, tokenizer = loaded(backend)
    plan = Speculation(speculation, verifier=verifier)
    known = {} if isinstance(speculation, str) else heads(speculation.method, backend)
    return LLM.from_model(target, tokenizer, speculation=plan, draft_models={"itself": target}, heads=known)


@cache
def prompts() -> list[list[int]]:
    llm = serving("none")
    return [llm.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]


@cache
def plain(setting: str, backend: str = "hf") -> list[tuple[str, tuple[int, ...]]]:
    llm = serving("none", backend=backend)
    return [(c.text, c.token_ids) for prompt in prompts() for c in llm.generate(prompt, SETTINGS[setting])]


def configs() -> dict[str, DrafterConfig]:
    """Every method; the model drafts for itself where one is needed."""
    made = {}
    for name in methods():
        found = config_class(name)
        fields = {item.name for item in dataclasses.fields(found)}  # type: ignore[arg-type]
        options: dict[str, object] = {"model": "itself"} if "model" in fields else {}
        options |= {"models": ("itself", "itself")} if "models" in fields else {}
        options |= {"head": "untrained"} if "head" in fields else {}
        options |= {"num_steps": 3} if "num_steps" in fields else {}
        made[name] = found(**options)
    return made


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize("backend", BACKENDS)
def test_text_is_identical(backend: str, method: str, setting: str) -> None:
    llm = serving(configs()[method], backend=backend)
    done = llm.generate(prompts(), SETTINGS[setting])
    assert [(c.text, c.token_ids) for c in done] == plain(setting, backend)
    llm.engine.pool.check()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head", ["smollm2-135m-eagle3", "smollm2-135m-dspark"])
def test_the_heads_that_come_along_draft_what_is_accepted(head: str, backend: str, setting: str) -> None:
    llm = serving(head_config(str(HEADS / head)), backend=backend)
    done = llm.generate(prompts(), SETTINGS[setting])
    assert [(c.text, c.token_ids) for c in done] == plain(setting, backend)
    emitted, rounds = (sum(getattr(c.speculation, name) for c in done) for name in ("emitted", "rounds"))
    assert emitted / rounds > 1.1, "a head that is fed the wrong rows is hardly ever right"


@pytest.mark.parametrize("rule", JUDGED_BY_DICE)
def test_every_rule_is_greedy_at_temperature_zero(rule: str) -> None:
    llm = serving(configs()["draft_model"], rule)
    assert [(c.text, c.token_ids) for c in llm.generate(prompts(), SETTINGS["greedy"])] == plain("greedy")


def test_streamed_text_is_the_text() -> None:
    llm = serving("auto")
    pieces = list(llm.stream(prompts()[2], SETTINGS["greedy"]))
    assert "".join(piece.text for piece in pieces) == plain("greedy")[2][0]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece.text for piece in pieces)


def test_acceptance_of_a_model_that_drafts_for_itself_is_one() -> None:
    done = serving(configs()["draft_model"]).generate(prompts()[1], SETTINGS["seeded"])[0]
    assert done.speculation.acceptance_rate == 1.0


def test_the_native_model_says_what_the_unquantised_one_says() -> None:
    """Same weights: int8 activations and an fp16 cache may turn close calls, and no more."""
    for prompt in prompts():
        batch, laws = TreeBatch.pack([SequenceRows("a", 0, tuple(prompt), None, all_logits=True)]), []
        for backend in BACKENDS:
            cache = KVPool(512, 16).cache("model")
            assert cache.extend("a", len(batch.tokens))
            laws.append(torch.log_softmax(loaded(backend)[0].forward(batch, cache).logits.double(), dim=1))
        divergence = (laws[0].exp() * (laws[0] - laws[1])).sum(dim=1)
        assert float(divergence.mean()) < 0.02
        assert float((laws[0].argmax(dim=1) == laws[1].argmax(dim=1)).float().mean()) > 0.85


def test_heads_that_come_along_know_their_model() -> None:
    model = find("SmolLM2-135M")[0]
    found = {head.name: head.is_for(model) for head in shipped_heads()}
    assert {name for name, is_for in found.items() if is_for} == {name for name in found if name.startswith("smollm2")}
