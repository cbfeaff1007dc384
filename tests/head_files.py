"""Heads of other projects as their projects write them: random weights under the published names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

WIDTH, HEADS, KEY_HEADS, HEAD_WIDTH, INNER, VOCABULARY, DRAFTED = 32, 4, 2, 8, 48, 64, 20
Weights = dict[str, torch.Tensor]
NETWORK: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
    "rope_theta": 5000.0,
    "rope_scaling": None,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
}


class Random:
    """Weights from a seed, large enough to matter."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator) * 0.2

    def norm(self, width: int) -> torch.Tensor:
        return 1.0 + self(width)

    def block(
        self, prefix: str, *, inputs: int = WIDTH, norms: bool = False, bias: bool = False, head_width: int = HEAD_WIDTH
    ) -> Weights:
        made = {
            "self_attn.q_proj.weight": self(HEADS * head_width, inputs),
            "self_attn.k_proj.weight": self(KEY_HEADS * head_width, inputs),
            "self_attn.v_proj.weight": self(KEY_HEADS * head_width, inputs),
            "self_attn.o_proj.weight": self(WIDTH, HEADS * head_width),
            "mlp.gate_proj.weight": self(INNER, WIDTH),
            "mlp.up_proj.weight": self(INNER, WIDTH),
            "mlp.down_proj.weight": self(WIDTH, INNER),
            "post_attention_layernorm.weight": self.norm(WIDTH),
        }
        if norms:
            made |= {f"self_attn.{part}_norm.weight": self.norm(head_width) for part in "qk"}
        if bias:
            made |= {f"self_attn.{part}_proj.bias": self(len(made[f"self_attn.{part}_proj.weight"])) for part in "qkv"}
        return {prefix + name: tensor for name, tensor in made.items()}


def vocabulary_maps(seed: int = 0) -> tuple[torch.Tensor, Weights]:
    """Which tokens are drafted, and the tensors that say so: ``d2t`` holds offsets."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCABULARY, generator=generator)[:DRAFTED].sort().values
    members = torch.zeros(VOCABULARY, dtype=torch.bool)
    members[ids] = True
    return ids, {"d2t": ids - torch.arange(DRAFTED), "t2d": members}


def eagle_files(*, bias: bool = True, projection_bias: bool = False, blocks: int = 1) -> tuple[dict[str, Any], Weights]:
    """EAGLE-1 and EAGLE-2."""
    random = Random(1)
    weights = {"embed_tokens.weight": random(VOCABULARY, WIDTH), "fc.weight": random(WIDTH, 2 * WIDTH)}
    if bias:
        weights["fc.bias"] = random(WIDTH)
    for layer in range(blocks):
        weights |= random.block(f"layers.{layer}.", bias=projection_bias)
        if layer:
            weights[f"layers.{layer}.input_layernorm.weight"] = random.norm(WIDTH)
    return NETWORK | {"num_hidden_layers": blocks, "bias": bias}, weights


def eagle3_files(
    *, block: str = "midlayer.", layers: int = 3, newer: bool = False, norms: bool = False, head_width: int = HEAD_WIDTH
) -> tuple[dict[str, Any], Weights]:
    """EAGLE-3 as its authors and SpecForge write it; with ``newer``, EAGLE-3.1."""
    random = Random(2)
    weights = {
        "fc.weight": random(WIDTH, layers * WIDTH),
        **random.block(block, inputs=2 * WIDTH, norms=norms, head_width=head_width),
        f"{block}hidden_norm.weight": random.norm(WIDTH),
        f"{block}input_layernorm.weight": random.norm(WIDTH),
        "norm.weight": random.norm(WIDTH),
        "lm_head.weight": random(DRAFTED, WIDTH),
        **vocabulary_maps()[1],
    }
    config = NETWORK | {"draft_vocab_size": DRAFTED}
    if newer:
        weights |= {f"fc_norm.{layer}.weight": random.norm(WIDTH) for layer in range(layers)}
        config |= {"fc_norm": True, "norm_output": True}
    return config, weights


def speculators_eagle3_files(**more: Any) -> tuple[dict[str, Any], Weights]:
    """EAGLE-3 as ``speculators`` writes it."""
    weights = eagle3_files(block="layers.0.", newer=more.get("fc_norm", False))[1]
    if more.get("norm_before_fc"):
        weights["input_norm.weight"] = Random(3).norm(3 * WIDTH)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "someone/target"}},
        "transformer_layer_config": NETWORK,
        "draft_vocab_size": DRAFTED,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        **more,
    }
    return config, weights


def backbone(random: Random, layers: int, blocks: int = 2) -> Weights:
    weights = {
        "fc.weight": random(WIDTH, layers * WIDTH),
        "hidden_norm.weight": random.norm(WIDTH),
        "norm.weight": random.norm(WIDTH),
    }
    for block in range(blocks):
        weights |= random.block(f"layers.{block}.", norms=True)
        weights[f"layers.{block}.input_layernorm.weight"] = random.norm(WIDTH)
    return weights


def correction(random: Random, kind: str = "vanilla", drafted: int = VOCABULARY, rank: int = 6) -> Weights:
    weights = {
        "markov_head.markov_w1.weight": random(VOCABULARY, rank),
        "markov_head.markov_w2.weight": random(drafted, rank),
        "confidence_head.proj.weight": random(1, WIDTH + rank),
        "confidence_head.proj.bias": random(1),
    }
    if kind == "gated":
        weights |= {
            "markov_head.gate_proj.weight": random(rank, WIDTH + rank),
            "markov_head.gate_proj.bias": random(rank),
        }
    if kind == "rnn":
        weights |= {
            "markov_head.joint_proj.weight": random(3 * rank, WIDTH + 2 * rank),
            "markov_head.joint_proj.bias": random(3 * rank),
        }
    return weights


BLOCKS: Final[dict[str, Any]] = NETWORK | {
    "num_hidden_layers": 2,
    "model_type": "qwen3",
    "head_dim": HEAD_WIDTH,
    "block_size": 4,
    "num_target_layers": 6,
    "layer_types": ["full_attention"] * 2,
}


def deepspec_files(kind: str = "vanilla") -> tuple[dict[str, Any], Weights]:
    """DSpark as DeepSpec writes it: copies of the target's two ends beside the drafter."""
    random = Random(4)
    weights = backbone(random, 3) | correction(random, kind)
    weights |= {"embed_tokens.weight": random(VOCABULARY, WIDTH), "lm_head.weight": random(VOCABULARY, WIDTH)}
    config = BLOCKS | {
        "architectures": ["Qwen3DSparkModel"],
        "mask_token_id": 5,
        "target_layer_ids": [1, 3, 4],
        "num_anchors": 512,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "markov_rank": 6,
        "markov_head_type": kind,
    }
    return config, weights


def specforge_files(prefix: str = "") -> tuple[dict[str, Any], Weights]:
    """DSpark as SpecForge writes it; older versions put a prefix before the heads' names."""
    random = Random(5)
    heads = {prefix + name: tensor for name, tensor in correction(random).items()}
    config = BLOCKS | {
        "architectures": ["DSparkDraftModel"],
        "dflash_config": {
            "projector_type": "dspark",
            "attention_mode": "gqa",
            "markov_rank": 6,
            "markov_head_type": "vanilla",
            "confidence_head_alpha": 1.0,
            "mask_token_id": 5,
            "target_layer_ids": [1, 3, 4],
        },
    }
    return config, backbone(random, 3) | heads


def dflash_files() -> tuple[dict[str, Any], Weights]:
    """DFlash as its authors write it: neither embedding nor LM head."""
    config = BLOCKS | {
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 3, 4]},
    }
    return config, backbone(Random(6), 3)


def speculators_dspark_files(kind: str = "vanilla") -> tuple[dict[str, Any], Weights]:
    """DSpark as ``speculators`` writes it, with a reduced vocabulary."""
    random = Random(7)
    weights = backbone(random, 3) | correction(random, kind, DRAFTED)
    weights |= {"lm_head.weight": random(DRAFTED, WIDTH), **vocabulary_maps()[1]}
    config = {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_config": {"algorithm": "dspark", "verifier": {"name_or_path": None}},
        "transformer_layer_config": {key: value for key, value in BLOCKS.items() if key != "block_size"},
        "draft_vocab_size": DRAFTED,
        "aux_hidden_state_layer_ids": [2, 4, 5],
        "block_size": 4,
        "mask_token_id": 5,
        "sample_from_anchor": True,
        "markov_rank": 6,
        "markov_head_type": kind,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return config, weights


def medusa_files(prefix: str = "", layers: int = 2) -> tuple[dict[str, Any], Weights]:
    """Medusa as its authors write it."""
    random = Random(8)
    weights = {}
    for head in range(3):
        once = {"weight": random(WIDTH, WIDTH), "bias": random(WIDTH)}  # one module, whatever the number of layers
        for layer in range(layers):
            weights |= {f"{prefix}{head}.{layer}.linear.{part}": tensor.clone() for part, tensor in once.items()}
        weights[f"{prefix}{head}.{layers}.weight"] = random(VOCABULARY, WIDTH)
    config = {"medusa_num_heads": 3, "medusa_num_layers": layers, "base_model_name_or_path": "someone/target"}
    return config, weights


def vllm_medusa_files(prefix: str = "") -> tuple[dict[str, Any], Weights]:
    """Medusa as vLLM reads it, with a reduced vocabulary."""
    random = Random(9)
    weights = {"token_map": vocabulary_maps()[0]}
    for head in range(3):
        weights[f"{prefix}blocks.{head}.layers.0.weight"] = random(WIDTH, WIDTH)
        weights[f"{prefix}lm_heads.{head}.weight"] = random(DRAFTED, WIDTH)
    return {
        "model_type": "medusa",
        "num_heads": 3,
        "num_hidden_layers": 1,
        "hidden_size": WIDTH,
        "vocab_size": VOCABULARY,
        "truncated_vocab_size": DRAFTED,
    }, weights


FILES: Final = {
    "eagle": eagle_files,
    "eagle3": eagle3_files,
    "deepspec": deepspec_files,
    "specforge": specforge_files,
    "dflash": dflash_files,
    "medusa": medusa_files,
    "vllm medusa": vllm_medusa_files,
    "speculators eagle3": speculators_eagle3_files,
    "speculators dspark": speculators_dspark_files,
}


def put(folder: Path, files: tuple[dict[str, Any], Weights], weights: str = "model.safetensors") -> Path:
    """Write a head's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files[0]), encoding="utf-8")
    if weights.endswith(".safetensors"):
        save_file(files[1], folder / weights)
    else:
        torch.save(files[1], folder / weights)
    return folder
