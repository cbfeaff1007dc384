"""Tiny random models for tests: real transformers classes, real attention, milliseconds to run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig

from outrider.models.hf.model import ATTENTION, HFModel
from outrider.models.native.model import NativeModel
from outrider.models.native.packed_weights import Quantization, RequantizedWeights, TensorWeights

VOCABULARY = 64
Module = TypeVar("Module", bound=torch.nn.Module)


@lru_cache
def tiny_module(
    seed: int = 0, vocabulary: int = VOCABULARY, attention: str = ATTENTION, head_dim: int = 8
) -> LlamaForCausalLM:
    """A two-layer Llama whose logits spread enough for argmax to mean something."""
    sizes = SIZES | {"vocab_size": vocabulary, "head_dim": head_dim}
    return seeded(LlamaForCausalLM, LlamaConfig(**sizes, attn_implementation=attention), seed)


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def seeded(kind: type[Module], config: PretrainedConfig, seed: int) -> Module:
    """A model of a class whose matrices are drawn wide enough to prefer some tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = kind(config).eval().requires_grad_(False)
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(0.0, 0.25)
    return module


def tiny_model(seed: int = 0, vocabulary: int = VOCABULARY) -> HFModel:
    """The same, behind the target protocol."""
    return HFModel(tiny_module(seed, vocabulary), architecture="LlamaForCausalLM", context_length=512)


@lru_cache
def tiny_native(seed: int = 0, vocabulary: int = VOCABULARY) -> NativeModel:
    """The same kind of model on the native backend, in eight bits: integer kernels, heads narrower than a vector."""
    module = tiny_module(seed, vocabulary, head_dim=16)
    weights = RequantizedWeights(TensorWeights(module.state_dict()), Quantization.W8)
    return NativeModel(module.config, weights, context_length=512)
