"""The same contracts on a GPU: ``pytest -m gpu`` on a machine that has one."""

from __future__ import annotations

import copy

import pytest
import torch
from contract.cases import PROMPTS, configs, heads_of
from contract.test_lossless import SETTINGS
from tiny import tiny_module

from outrider import LLM
from outrider.drafters.base import DrafterConfig
from outrider.models.hf.model import HFModel

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU on this machine")


def model(seed: int, dtype: torch.dtype) -> HFModel:
    module = copy.deepcopy(tiny_module(seed)).to("cuda", dtype)
    return HFModel(module, architecture="LlamaForCausalLM", context_length=512)


def llm(config: DrafterConfig | str, dtype: torch.dtype) -> LLM:
    drafts = {"good": model(0, dtype), "bad": model(1, dtype)}
    target = model(0, dtype)
    heads = {} if isinstance(config, str) else heads_of(config, target)
    return LLM.from_model(target, speculation=config, draft_models=drafts, heads=heads)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("case", "config"), list(configs("good")), ids=lambda value: value if isinstance(value, str) else ""
)
def test_text_is_plain_text_in_float32(case: str, config: DrafterConfig, setting: str) -> None:
    plain = [c.token_ids for c in llm("none", torch.float32).generate(PROMPTS, SETTINGS[setting])]
    served = llm(config, torch.float32)
    assert [c.token_ids for c in served.generate(PROMPTS, SETTINGS[setting])] == plain
    served.engine.pool.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_drafts_are_accepted(dtype: torch.dtype) -> None:
    done = llm(dict(configs("good"))["draft_model"], dtype).generate(PROMPTS, SETTINGS["greedy"])
    assert all(c.speculation.acceptance_rate > 0.8 for c in done)
