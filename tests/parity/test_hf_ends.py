"""The two ends of transformers models: final rows, what the head makes of them, embeddings, rows of the head."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from families import VOCABULARY, build_pair, tiny_config
from tiny import tiny_module

from outrider.errors import ModelError
from outrider.kv.pool import KVPool
from outrider.models.base import TargetOutput
from outrider.models.hf import transformers_api
from outrider.models.hf.model import HFModel
from outrider.tree import SequenceRows, TreeBatch

PLAIN = ("llama", "qwen3", "phi3", "mixtral", "deepseek_v3", "llama4_text", "nemotron")
SCALED = {  # model type → what makes it scale embeddings or logits
    "gemma2": {"final_logit_softcapping": 2.0},
    "gemma3_text": {},
    "gemma3": {},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "cohere": {"logit_scale": 0.25},
    "afmoe": {"mup_enabled": True},
}
OWN_HEADS = ("bert", "modernbert-decoder", "phi", "opt", "gpt2", "mllama")
"""Heads with biases or layers of their own, blocks in unusual places, or positions added to the embeddings."""
TOKENS = tuple(range(4, 17))


@cache
def model(model_type: str) -> HFModel:
    served = build_pair(tiny_config(model_type, SCALED.get(model_type)))[1]
    return HFModel(served, architecture=model_type, context_length=64)


def run(served: HFModel, layers: tuple[int, ...]) -> tuple[TreeBatch, TargetOutput]:
    cache_ = KVPool(64, 16).cache("model")
    cache_.extend("a", len(TOKENS))
    batch = TreeBatch.pack([SequenceRows("a", 0, TOKENS, None, all_logits=True)])
    return batch, served.forward(batch, cache_, layers)


@pytest.mark.parametrize("model_type", [*PLAIN, *SCALED, *OWN_HEADS])
def test_the_head_makes_a_pass_logits_of_its_final_rows(model_type: str) -> None:
    served = model(model_type)
    output = run(served, (served.layers,))[1]
    final = output.hidden[served.layers]
    assert final.shape == (len(TOKENS), served.width)
    logits = served.unembed(final)
    assert logits.shape == (len(TOKENS), VOCABULARY)
    assert float((logits - output.logits).abs().max()) < 1e-5 * float(output.logits.std())


@pytest.mark.parametrize("model_type", [*PLAIN, *SCALED])
def test_embeddings_are_what_the_first_block_reads(model_type: str) -> None:
    served = model(model_type)
    read: list[torch.Tensor] = []
    hook = transformers_api.decoder_layers(served.module)[0].register_forward_pre_hook(
        lambda module, inputs, options: read.append(inputs[0] if inputs else options["hidden_states"]),
        with_kwargs=True,
    )
    batch = run(served, ())[0]
    hook.remove()
    torch.testing.assert_close(served.embed(batch.tokens), read[0][0])


@pytest.mark.parametrize("model_type", ["llama", "cohere", "bert"])
def test_rows_of_the_head_are_its_matrix(model_type: str) -> None:
    served: Any = model(model_type)
    ids = torch.tensor([5, 0, 63, 5])
    assert torch.equal(served.unembed_rows(ids), served.module.get_output_embeddings().weight[ids])


def test_the_ends_answer_in_fp32_and_can_be_trained_on() -> None:
    served = HFModel(tiny_module().bfloat16(), architecture="LlamaForCausalLM", context_length=64)
    tiny_module.cache_clear()  # it was made narrower in place
    rows = served.embed(torch.tensor([3, 4]))
    for found in (rows, served.unembed(rows), served.unembed_rows(torch.tensor([1]))):
        assert found.dtype == torch.float32
        (found * torch.ones(found.shape[-1], requires_grad=True)).sum().backward()


def test_a_layer_that_is_not_there_is_refused() -> None:
    served = model("llama")
    for layer in (-1, served.layers + 1):
        with pytest.raises(ModelError, match=rf"layer {layer} .* 0 to {served.layers}"):
            run(served, (0, layer))
