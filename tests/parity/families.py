"""A tiny random model of every causal family transformers has, by shrinking its default configuration."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outrider.models.hf.model import ATTENTION

VOCABULARY = 64
WINDOW = 8  # shorter than the texts, so that a window that is not obeyed shows
CONTEXT = 128
GAIN = 1.1  # of each matrix: wide enough for tokens to matter, narrow enough not to blow rounding up
PRETRAINED = 16  # what a scaled rope was "pretrained" for: the texts grow past it

_SMALL: dict[str, tuple[str, ...]] = {  # value → the names under which families keep it
    "64": ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"),
    "32": ("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "embedding_size"),
    "48": (
        "intermediate_size ffn_dim n_inner ffn_hidden_size dense_intermediate_size intermediate_size_mlp dff "
        "decoder_ffn_dim encoder_ffn_dim"
    ),
    "24": (
        "moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size "
        "expert_ffn_hidden_size shared_intermediate_size moe_shared_expert_intermediate_size"
    ),
    "16": ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "index_head_dim", "index_n_heads"),
    "8": "head_dim kv_channels qk_rope_head_dim qk_nope_head_dim v_head_dim hidden_size_per_layer_input image_size",
    "6": ("index_topk",),
    "4": (
        "num_hidden_layers n_layer n_layers num_layers num_attention_heads n_head n_heads num_heads num_experts "
        "n_routed_experts num_local_experts moe_num_experts rotary_dim patch_size mm_tokens_per_image "
        "decoder_attention_heads encoder_attention_heads"
    ),
    "2": (
        "num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_k n_group num_expert_group "
        "max_window_layers decoder_layers encoder_layers"
    ),
    "1": ("topk_group", "first_k_dense_replace", "num_dense_layers"),
}
SMALL: dict[str, Any] = {
    name: int(value) for value, names in _SMALL.items() for name in (names.split() if isinstance(names, str) else names)
} | {
    **dict.fromkeys(("sliding_window", "keep_window_size", "window_size", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length"), CONTEXT),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 3,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "eod_token_id": 3,
    "use_sliding_window": True,
    "is_decoder": True,
    "num_kv_shared_layers": 0,
    "attention_dropout": 0.0,
    "logit_scale": 1.0,
    "tie_word_embeddings": False,
}

_MIXED = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_CONV = {"layer_types": ["conv", "full_attention"] * 2}
_MLA = {"num_key_value_heads": 4}
_ROPE = {"rope_theta": 10000.0}
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "mellum", "laguna", "gemma3_text", "kolibri1"), _MIXED),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _CONV),
    "gemma4_assistant": {
        "text_config": {
            **dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0),
            "model_type": "gemma4_text",
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 4,
        }
    },
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "sarvam_mla", "youtu"), _MLA),
    "longcat_flash": {**_MLA, "num_layers": 2, "head_dim": 8},
    "gemma3": {"text_config": _MIXED},
    "dory": {**dict.fromkeys(("n_input_layers", "n_recurrent_layers", "n_output_layers"), 2), "num_hidden_layers": 6},
    "dots1": {**_MIXED, "n_shared_experts": 1},
    "cohere_compass_text": {
        **_MIXED,
        "rope_parameters": {"full_attention": None, "sliding_attention": {"rope_type": "default", **_ROPE}},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, **_ROPE}, "ffn_config": {"ffn_hidden_size": 48}},
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "activation_sparsity_pattern": None,
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
}

PRECISE = {"gemma4_text"}  # run in fp64: in fp32 its own eager and sdpa runs differ by more than a tenth of the bound

_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": PRETRAINED, **_ROPE}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": PRETRAINED,
    **_ROPE,
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 3.0, 5.0],
    "original_max_position_embeddings": PRETRAINED,
    **_ROPE,
}
_MSCALE = {**_LONGROPE, "short_mscale": 1.1, "long_mscale": 1.3}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, **_ROPE}


class Variant(NamedTuple):
    """One way to configure a family beyond its plain form."""

    model_type: str
    name: str
    values: dict[str, Any]
    context: int = CONTEXT
    """The context length it is served with."""
    longest_chooses: bool = False
    """Stock frequencies depend on the longest position: compare with a stock run as long as the context."""


VARIANTS = (
    Variant("llama", "rope linear", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, **_ROPE}}),
    Variant("llama", "rope llama3", {"rope_parameters": _LLAMA3}),
    Variant("llama", "rope yarn", {"rope_parameters": _YARN}),
    Variant(
        "llama",
        "rope dynamic",
        {"rope_parameters": _DYNAMIC, "max_position_embeddings": PRETRAINED},
        context=64,
        longest_chooses=True,
    ),
    Variant(
        "phi3",
        "rope longrope, context beyond",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": PRETRAINED},
        longest_chooses=True,
    ),
    Variant(
        "phi3",
        "rope longrope, context within",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 96},
        context=96,
    ),
    Variant(
        "hunyuan_v1_dense",
        "rope dynamic with alpha",
        {"rope_parameters": {**_DYNAMIC, "factor": 1.0, "alpha": 50.0}},
    ),
    Variant(
        "phi4_multimodal",
        "rope longrope",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": PRETRAINED},
        longest_chooses=True,
    ),
    Variant("minicpm3", "rope longrope", {"rope_parameters": _LONGROPE}, longest_chooses=True),
    Variant("phimoe", "rope longrope", {"rope_parameters": _MSCALE}, longest_chooses=True),
    Variant("deepseek_v3", "rope yarn", {"rope_parameters": _YARN}),
    Variant("qwen2", "no window", {"layer_types": ["full_attention"] * 4, "use_sliding_window": False}),
    Variant("mistral", "no window", {"sliding_window": None}),
    Variant("gemma4_text", "no shared keys", {"num_kv_shared_layers": 0}),
    Variant("llama", "tied embeddings", {"tie_word_embeddings": True}),
    Variant("bert", "encoder", {"is_decoder": False}),
)


def model_types() -> list[str]:
    """Every model type with a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def causal_class(model_type: str) -> type:
    """The causal class of a model type."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[model_type]]


def tiny_config(model_type: str, values: dict[str, Any] | None = None) -> Any:
    """The default configuration of a model type, shrunk."""
    return _shrink(CONFIG_MAPPING[model_type], OVERRIDES.get(model_type, {}) | (values or {}))


def default_config(family: Any) -> Any:
    """A family's configuration without any value given; None where that is not valid."""
    try:
        return family()
    except StrictDataclassError:
        return None


def _shrink(family: Any, overrides: dict[str, Any]) -> Any:
    default = default_config(family)
    names = default.to_dict() if default is not None else {}
    small = {name: value for name, value in SMALL.items() if name in names}
    if "qk_rope_head_dim" in names:
        small.pop("head_dim", None)  # latent attention derives it
    parts = {name: type(getattr(default, name)) for name in family.sub_configs if getattr(default, name, None)}
    for name, part in parts.items():
        small[name] = _shrink(part, overrides.get(name, {}))
    return family(**small | {name: value for name, value in overrides.items() if name not in parts})


def build_pair(config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The same random weights twice: with stock eager attention, and with ours.

    The weights are drawn wide enough for logits to spread by about one, so that a wrong key shows.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        stock, served = (
            AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention, dtype=dtype)
            for attention in ("eager", ATTENTION)
        )
        for parameter in stock.parameters():
            if parameter.ndim >= 2:
                parameter.data.normal_(0.0, GAIN / min(parameter.shape[-2:]) ** 0.5)
            elif parameter.any():
                parameter.data.mul_(1 + 0.1 * torch.randn_like(parameter))
            else:
                parameter.data.normal_(0.0, 0.1)
    served.load_state_dict(stock.state_dict())
    return stock.eval().requires_grad_(False), served.eval().requires_grad_(False)
