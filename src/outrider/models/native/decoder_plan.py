"""A dense decoder's plan, from its configuration, before any weight is read.

There is one decoder.  A family's differences are values: optional tensors, or its row in ``FAMILIES``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from outrider.kernels.native import missing
from outrider.models.hf.blueprint import Blueprint
from outrider.models.native.packed_weights import Bytes
from outrider.models.pass_plan import AttentionCall

_MODULES: Final = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_FUSED_MODULES: Final = _MODULES | {
    "query": "self_attn.qkv_proj",
    "key": "self_attn.qkv_proj",
    "value": "self_attn.qkv_proj",
    "gate": "mlp.gate_up_proj",
    "up": "mlp.gate_up_proj",
}


@dataclass(frozen=True)
class Family:
    """A family's properties, beyond its tensors."""

    modules: Mapping[str, str] = field(default_factory=lambda: _MODULES)
    """Module of each matrix; matrices of one module take its rows in order."""

    norm_offset: float = 0.0
    """Added to every norm weight."""
    scales_embedding: bool = False
    """Whether embeddings are multiplied by the square root of the width."""
    activation: str = "hidden_act"
    """Name of the option for the activation function."""
    mlp_norm: str = "post_attention_layernorm"
    attention_post_norm: str = ""
    mlp_post_norm: str = ""
    score_cap: str = ""
    """Name of the option that bounds attention scores."""
    logit_cap: str = ""
    """Name of the option that bounds logits."""


_GEMMA: Final = Family(
    norm_offset=1.0,
    scales_embedding=True,
    activation="hidden_activation",
    mlp_norm="pre_feedforward_layernorm",
    attention_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
    logit_cap="final_logit_softcapping",
)
FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "phi3": Family(modules=_FUSED_MODULES),
    "gemma2": replace(_GEMMA, score_cap="attn_logit_softcapping"),
    "gemma3_text": _GEMMA,
}
"""transformers' model types that the decoder supports."""
_GELUS: Final = {"silu": False, "swish": False, "gelu_pytorch_tanh": True}


def reason_against(config: Any) -> str | None:
    """Why the native backend cannot serve a configuration, as the end of a sentence; None if it can."""
    if missing is not None:
        return missing
    kind = config.model_type
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        return f"the model type {kind!r} is not among those its decoder knows ({known})"
    if getattr(config, FAMILIES[kind].activation) not in _GELUS:
        return "its activation function has no kernel"
    if getattr(config, "use_bidirectional_attention", None):
        return "its rows see later rows (use_bidirectional_attention)"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised in a format without kernels"
    return None


@dataclass(frozen=True)
class Shape:
    """The decoder's sizes, for the kernels."""

    width: int
    heads: int
    key_heads: int
    head_width: int
    rotary_width: int
    inner: int
    vocabulary: int
    norm_epsilon: float
    score_scale: float
    score_cap: float
    logit_cap: float
    embedding_scale: float
    gelu: bool

    @property
    def outputs(self) -> dict[str, int]:
        """Rows of each of a layer's matrices."""
        query, key = self.heads * self.head_width, self.key_heads * self.head_width
        return {
            "query": query,
            "key": key,
            "value": key,
            "output": self.width,
            "gate": self.inner,
            "up": self.inner,
            "down": self.width,
        }


@dataclass(frozen=True)
class Rotation:
    """Rotary angles of a layer."""

    inverse_frequencies: Bytes
    """fp32 [rotary width / 2]"""
    scale: float


@dataclass(frozen=True)
class DecoderPlan:
    """Everything from the configuration, checked."""

    family: Family
    shape: Shape
    due: Mapping[str, tuple[int, ...]]
    """Shape of every parameter."""
    rotations: tuple[Rotation, ...]
    windows: tuple[int, ...]
    """Number of positions that a row sees, by layer; 0 is all."""

    @property
    def layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.windows)

    @property
    def places(self) -> dict[str, tuple[str, slice]]:
        """Module and rows of each of a layer's matrices."""
        taken: Counter[str] = Counter()
        places = {}
        for part, rows in self.shape.outputs.items():
            module = self.family.modules[part]
            places[part] = module, slice(taken[module], taken[module] + rows)
            taken[module] += rows
        return places

    @classmethod
    def of(cls, config: Any, blueprint: Blueprint, context_length: int) -> DecoderPlan:
        """Make a plan; raises ValueError, or what transformers raises, for an impossible configuration."""
        family = FAMILIES[config.model_type]
        rotations = tuple(
            Rotation(frequencies.contiguous().numpy(), scale)
            for frequencies, scale in blueprint.rotations(context_length)
        )
        calls = blueprint.attention_calls()
        shape = Shape(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            rotary_width=2 * len(rotations[0].inverse_frequencies),
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            norm_epsilon=float(config.rms_norm_eps),
            score_scale=calls[0].scaling,
            score_cap=float(calls[0].softcap or 0),
            logit_cap=float(getattr(config, family.logit_cap, None) or 0),
            embedding_scale=torch.tensor(config.hidden_size**0.5).item() if family.scales_embedding else 1.0,
            gelu=_GELUS[getattr(config, family.activation)],
        )
        windows = tuple(call.reach.window or 0 for call in calls)
        _check_numbers(shape, rotations, calls)
        return cls(family, shape, blueprint.shapes, rotations, windows)


def _check_numbers(shape: Shape, rotations: Sequence[Rotation], calls: Sequence[AttentionCall]) -> None:
    """Refuse impossible values that no parameter's shape would show."""
    for name, number in vars(shape).items():
        if not math.isfinite(number) or (type(number) is int and number < 1) or number < 0:
            raise ValueError(f"the {name.replace('_', ' ')} is {number}")
    if shape.heads % shape.key_heads:
        raise ValueError(f"{shape.key_heads} key heads do not divide {shape.heads} heads")
    if len({(call.scaling, call.softcap) for call in calls}) > 1:
        raise ValueError("its layers scale or cap their attention scores differently")
    if len(calls) != len(rotations) or any(call.sinks is not None for call in calls):
        raise ValueError("its layers do not ask for attention once each, or have sinks, for which there is no kernel")
    for rotation in rotations:
        turned = 2 * len(rotation.inverse_frequencies)
        if turned != shape.rotary_width or turned > shape.head_width:
            raise ValueError(f"a head has {shape.head_width} numbers, and {turned} of them would turn")
        if not (np.isfinite(rotation.inverse_frequencies).all() and math.isfinite(rotation.scale)):
            raise ValueError("its rotary frequencies are not finite")
    for reach in (call.reach for call in calls):
        if reach.chunk is not None or (reach.window is not None and reach.window < 1):
            raise ValueError(f"a layer's attention reaches {reach.chunk or reach.window} positions")
