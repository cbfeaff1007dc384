"""Families of transformers: the main ones by the full contract here, all of them by docs/generate_families.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CONTEXT, VARIANTS, build_pair, causal_class, model_types, tiny_config
from flat_contract import FlatRun, StockRun
from survey import SENSITIVE, TOLERANCE, examine

from outrider.errors import ModelError
from outrider.kv.pool import PagedCache
from outrider.models.hf import transformers_api
from outrider.models.hf.model import HFModel
from outrider.models.hf.selfcheck import compare_with_eager
from outrider.models.hf.verified import VERIFIED
from outrider.models.pass_plan import Reach
from outrider.tree import SequenceRows, TreeBatch, root_only

TABLE = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
MAIN = (
    *("llama", "qwen2", "qwen3", "mistral", "phi3", "opt", "gpt2"),
    *("gemma2", "gemma3_text", "mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"),
)
SPECIAL = ("phimoe", "llama4_text", "gemma4_text", "nemotron", "diffllama", "hrm_text")
HALF = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mixtral")
REFUSED = {
    "mamba": "keeps a state",
    "qwen3_next": "keeps a state",
    "bart": "encoder–decoder",
    "bloom": "attention interface",
    "roberta": "counts positions",
    "deepseek_v32": "indexer",
    "doge": "attention mask",
}


def table_rows(heading: str) -> set[tuple[str, str]]:
    section = TABLE.split(f"## {heading}")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    variant = cells[0].index("variant")
    return {(row[0], row[variant]) for row in cells[1:]}


def test_the_table_names_every_model_type_once() -> None:
    served, refused = table_rows("Supported"), table_rows("Refused")
    assert not served & refused
    variants = {(variant.model_type, variant.name) for variant in VARIANTS}
    assert served | refused == {(model_type, "") for model_type in model_types()} | variants


def test_the_verified_classes_are_those_the_table_serves() -> None:
    assert {causal_class(model_type).__name__ for model_type, _ in table_rows("Supported")} == VERIFIED


@pytest.mark.parametrize("model_type", [*MAIN, *SPECIAL])
def test_rows_of_a_flat_pass_equal_the_stock_model_alone(model_type: str) -> None:
    finding = examine(model_type)
    assert finding.outcome is not None, finding.refusal
    assert finding.outcome.worst < TOLERANCE
    assert finding.outcome.control > SENSITIVE
    assert finding.outcome.hidden or model_type == "hrm_text"
    assert (model_type, "") in table_rows("Supported")


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "mixtral", "gpt2", "opt"])
def test_hidden_rows_are_the_outputs_of_their_blocks(model_type: str) -> None:
    stock, served = build_pair(tiny_config(model_type))
    model, cache = HFModel(served, architecture=type(served).__name__, context_length=CONTEXT), PagedCache(8, 4)
    tokens = list(range(6, 18))
    assert cache.extend("a", len(tokens))
    batch = TreeBatch.pack([SequenceRows("a", 0, tuple(tokens[:-1]), root_only(tokens[-1]))])
    hidden = model.forward(batch, cache, layers=(0, 1, 2)).hidden
    with torch.inference_mode():
        states = stock(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    for layer in range(3):
        assert torch.allclose(hidden[layer], states[layer + 1][0], atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.model_type} {variant.name}")
def test_variants_are_served_or_refused_as_the_table_says(variant: Any) -> None:
    finding = examine(variant.model_type, variant)
    assert finding.passed
    heading = "Supported" if finding.outcome is not None else "Refused"
    assert (variant.model_type, variant.name) in table_rows(heading)


@pytest.mark.parametrize(("model_type", "reason"), REFUSED.items())
def test_what_cannot_be_rolled_back_is_refused_in_one_sentence(model_type: str, reason: str) -> None:
    refusal = examine(model_type).refusal
    assert refusal is not None and reason in refusal and "\n" not in refusal
    assert refusal in TABLE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", HALF)
def test_half_precision_stays_as_close_as_its_rounding(model_type: str, dtype: torch.dtype) -> None:
    stock, served = build_pair(tiny_config(model_type), dtype=dtype)
    outcome = FlatRun(StockRun(stock), served, CONTEXT).run()
    bound = 0.2 if dtype == torch.bfloat16 else 0.03
    assert outcome.typical < bound
    assert outcome.worst < outcome.control / 2


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2", "llama4_text", "gemma3"])
def test_an_unknown_class_is_compared_with_eager_attention(model_type: str) -> None:
    _, served = build_pair(tiny_config(model_type))
    HFModel(served, architecture="SomethingNewForCausalLM", context_length=CONTEXT)
    assert served.config._attn_implementation == "outrider"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_unknown_class_whose_window_is_not_obeyed_is_refused(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    _, served = build_pair(tiny_config("mistral"), dtype=dtype)
    model = HFModel(served, architecture="MistralForCausalLM", context_length=CONTEXT)
    compare_with_eager(model, served, "MistralForCausalLM")
    monkeypatch.setattr(transformers_api, "_read_reach", lambda module, options: Reach())
    with pytest.raises(ModelError, match=re.escape("SomethingNew is not among the verified classes")):
        HFModel(served, architecture="SomethingNew", context_length=CONTEXT)


def test_a_model_that_skips_our_attention_is_refused() -> None:
    _, served = build_pair(tiny_config("llama"))
    served.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match="asked for attention 0 times"):
        HFModel(served, architecture="SomethingNew", context_length=CONTEXT)


def test_rows_do_not_depend_on_a_long_neighbour_under_longrope() -> None:
    variant = next(item for item in VARIANTS if item.name == "rope longrope, context beyond")
    stock, served = build_pair(tiny_config("phi3", variant.values))
    short = FlatRun(StockRun(stock), served, CONTEXT).run()  # compared with runs as short as the path
    assert short.worst > SENSITIVE, "the control: stock chooses by length, we do not"
