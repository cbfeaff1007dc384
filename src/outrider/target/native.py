"""Dense decoders on Outrider's own CPU kernels: a pass over several rows costs little more than a pass over one.

There is one definition of a decoder, driven by the model's configuration.  What a family has that others have not is a
value: a tensor that is there or not, or an entry of its row in ``FAMILIES``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from outrider.errors import ModelError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import LayerStore, PagedCache
from outrider.target import hf_names
from outrider.target.base import TargetOutput
from outrider.target.loading import ModelFiles, one_line
from outrider.target.native_weights import (
    Bytes,
    GGUFWeights,
    MappedTensors,
    Quantization,
    RequantizedWeights,
    StoredMatrix,
    TensorWeights,
    WeightSource,
    pack_all,
)
from outrider.target.packed_cache import PackedEntry
from outrider.tree import TokenTree, TreeBatch

_GROUP: Final = 32


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
    """What sets a family apart, beyond the tensors it has."""

    modules: Mapping[str, str] = field(default_factory=lambda: _MODULES)
    """Where each matrix is; those that share a module take its rows one after the other."""

    norm_offset: float = 0.0
    """Added to every norm weight."""
    scales_embedding: bool = False
    """Whether embeddings are multiplied by the square root of the width."""
    activation: str = "hidden_act"
    """Option that names the activation function."""
    mlp_norm: str = "post_attention_layernorm"
    attention_post_norm: str = ""
    mlp_post_norm: str = ""
    score_cap: str = ""
    """Option that bounds attention scores."""
    logit_cap: str = ""
    """Option that bounds logits."""


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
"""transformers' model types that the decoder knows."""
_GELUS: Final = {"silu": False, "swish": False, "gelu_pytorch_tanh": True}


def reason_against(config: Any) -> str | None:
    """Why the native backend cannot serve a configuration, as the end of a sentence, or None if it can."""
    if missing is not None:
        return missing
    kind = config.model_type
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        return f"the model type {kind!r} is not among those its decoder knows ({known})"
    if getattr(config, FAMILIES[kind].activation) not in _GELUS:
        return "its activation function has no kernel"
    if getattr(config, "use_bidirectional_attention", None):
        return "its rows see what comes after them (use_bidirectional_attention)"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised in a format for which there are no kernels"
    return None


@dataclass(frozen=True)
class _Shape:
    """The decoder's sizes, as the kernels take them."""

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
class _Rotation:
    """How a layer turns queries and keys."""

    inverse_frequencies: Bytes
    """fp32 [rotary width / 2]"""
    scale: float


@dataclass(frozen=True)
class _Plan:
    """All that a configuration says of a decoder, checked."""

    family: Family
    shape: _Shape
    due: Mapping[str, tuple[int, ...]]
    """Shape of every parameter."""
    rotations: tuple[_Rotation, ...]
    windows: tuple[int, ...]
    """Positions each layer lets a row see; 0 is all."""

    @property
    def layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.windows)

    @property
    def places(self) -> dict[str, tuple[str, slice]]:
        """Module of each of a layer's matrices, and which of its rows they are."""
        taken: Counter[str] = Counter()
        places = {}
        for part, rows in self.shape.outputs.items():
            module = self.family.modules[part]
            places[part] = module, slice(taken[module], taken[module] + rows)
            taken[module] += rows
        return places

    @classmethod
    def of(cls, config: Any, blueprint: hf_names.Blueprint, context_length: int) -> _Plan:
        """Raises whatever transformers raises for an impossible configuration, and ValueError."""
        family = FAMILIES[config.model_type]
        rotations = tuple(
            _Rotation(frequencies.contiguous().numpy(), scale)
            for frequencies, scale in hf_names.rotary_frequencies(config, context_length)
        )
        shape = _Shape(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            rotary_width=2 * len(rotations[0].inverse_frequencies),
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            norm_epsilon=float(config.rms_norm_eps),
            score_scale=blueprint.score_scales[0],
            score_cap=float(getattr(config, family.score_cap, None) or 0),
            logit_cap=float(getattr(config, family.logit_cap, None) or 0),
            embedding_scale=torch.tensor(config.hidden_size**0.5).item() if family.scales_embedding else 1.0,
            gelu=_GELUS[getattr(config, family.activation)],
        )
        windows = tuple(reach.window or 0 for reach in blueprint.reaches)
        _check_numbers(shape, rotations, blueprint)
        return cls(family, shape, blueprint.shapes, rotations, windows)


def _check_numbers(shape: _Shape, rotations: Sequence[_Rotation], blueprint: hf_names.Blueprint) -> None:
    """Refuse what no parameter's shape would give away."""
    for name, number in vars(shape).items():
        if not math.isfinite(number) or (type(number) is int and number < 1) or number < 0:
            raise ValueError(f"the {name.replace('_', ' ')} is {number}")
    if shape.heads % shape.key_heads:
        raise ValueError(f"{shape.key_heads} key heads do not divide {shape.heads} heads")
    if len(set(blueprint.score_scales)) > 1:
        raise ValueError("its layers scale their attention scores differently")
    for rotation in rotations:
        turned = 2 * len(rotation.inverse_frequencies)
        if turned != shape.rotary_width or turned > shape.head_width:
            raise ValueError(f"a head has {shape.head_width} numbers, and {turned} of them would turn")
        if not (np.isfinite(rotation.inverse_frequencies).all() and math.isfinite(rotation.scale)):
            raise ValueError("its rotary frequencies are not finite")
    for reach in blueprint.reaches:
        if reach.chunk is not None or (reach.window is not None and reach.window < 1):
            raise ValueError(f"a layer's attention reaches {reach.chunk or reach.window} positions")


@contextmanager
def _naming(model: str) -> Iterator[None]:
    """Turn what an impossible configuration makes transformers raise, which is anything, into one sentence."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{model}: no model can be built from its configuration: {one_line(error)}") from error


class NativeModel:
    """A dense decoder behind the :class:`outrider.target.base.TargetModel` protocol, on the CPU.

    Args:
        config: transformers' configuration of a family in ``FAMILIES``.
        weights: its numbers.
        context_length: most positions to serve.
        name: for messages.
        kept: the packed model on disk, if it is to be looked for and kept.

    Raises:
        ModelError: the configuration or a weight cannot be served.
    """

    row_invariant = True
    device = torch.device("cpu")
    precision = "weights as stored, int8 activations"
    """Told in results instead of a dtype."""

    def __init__(
        self,
        config: Any,
        weights: WeightSource,
        *,
        context_length: int,
        name: str = "the model",
        kept: PackedEntry | None = None,
    ) -> None:
        if reason := reason_against(config):
            raise ModelError(f"the native backend cannot serve {name}: {reason}")
        with _naming(name):
            blueprint = hf_names.blueprint(config)
        weights.check(blueprint.shapes)  # from here on, no size is larger than what is really there
        with _naming(name):
            plan = _Plan.of(config, blueprint, context_length)
        self.context_length = context_length
        self._shape, self._layers = plan.shape, plan.layers
        self.vocabulary = self._shape.vocabulary
        matrices = _matrices(plan, weights)
        packed, self._arena = pack_all(matrices, kept)
        self.packed_bytes = len(self._arena.bytes)
        self.token_bytes = sum(
            m.stored_bytes for key, m in matrices.items() if key != "embedding" or "head" not in matrices
        )
        """Bytes of weights, in the file's own bits, that one token reads."""
        layers = [_layer(plan, weights, packed, i) for i in range(plan.layers)]
        embedding = packed["embedding"]
        final_norm = _norm(plan, weights, "model.norm.weight")
        self._decoder = cpu.Decoder(vars(plan.shape), layers, embedding, final_norm, packed.get("head", embedding))
        self._stored_width = -(-self._shape.head_width // _GROUP) * _GROUP
        self.row_bytes = 2 * 2 * plan.layers * self._shape.key_heads * self._stored_width

    @classmethod
    def of(
        cls, files: ModelFiles, *, quantization: Quantization = Quantization.NONE, context_length: int
    ) -> NativeModel:
        """Load a model from its files.

        Args:
            files: see :func:`outrider.target.loading.open_model`.
            quantization: what to make of the weights.
            context_length: most positions to serve.

        Raises:
            ModelError: a weight is missing or cannot be served.
        """
        source: WeightSource
        if files.gguf is None:
            source = TensorWeights(MappedTensors(files.weight_files), name=files.name)
        else:
            source = GGUFWeights(*files.gguf)
        source = RequantizedWeights(source, quantization)
        kept = PackedEntry(files.weight_files, quantization.value)
        return cls(files.config, source, context_length=context_length, name=files.name, kept=kept)

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        """See :class:`outrider.target.base.TargetModel`."""
        store = cache.layers.get(0) or self._make_store(cache)
        shares = [
            (
                sequence.rows,
                sequence.context,
                len(sequence.forced),
                sequence.skip,
                _parents(sequence.tree),
                cache.table(sequence.key).slots(0, sequence.context + sequence.tail).numpy(),
            )
            for sequence in batch.sequences
        ]
        logits = torch.empty(len(batch.wanted), self.vocabulary)
        hidden = {layer: torch.empty(len(batch.tokens), self._shape.width) for layer in layers}
        self._decoder.forward(
            batch.tokens.numpy(),
            batch.positions.numpy(),
            shares,
            store.keys,
            store.values,
            batch.wanted.numpy(),
            logits.numpy(),
            [(layer, rows.numpy()) for layer, rows in hidden.items()],
        )
        return TargetOutput(logits, hidden)

    def _make_store(self, cache: PagedCache) -> LayerStore:
        """All layers' keys and values as one store, ``[layers · key heads, slots, width]`` fp16."""
        like = torch.empty(self._layers * self._shape.key_heads, 0, self._stored_width, dtype=torch.float16)
        cache.layers[0] = LayerStore(cache.slots, like, like)
        return cache.layers[0]


def _matrices(plan: _Plan, weights: WeightSource) -> dict[str, StoredMatrix]:
    """Every matrix, in the order a pass reads them."""
    matrices = {
        f"{i}.{part}": weights.matrix(f"model.layers.{i}.{module}.weight").part(rows)
        for i in range(plan.layers)
        for part, (module, rows) in plan.places.items()
    }
    ends = {"embedding": "model.embed_tokens.weight", "head": "lm_head.weight"}
    return matrices | {key: weights.matrix(name) for key, name in ends.items() if name in plan.due}


def _norm(plan: _Plan, weights: WeightSource, name: str) -> Bytes | None:
    return weights.vector(name) + np.float32(plan.family.norm_offset) if name in plan.due else None


def _layer(plan: _Plan, weights: WeightSource, packed: Mapping[str, Any], index: int) -> dict[str, Any]:
    prefix = f"model.layers.{index}."
    norms = {
        "attention_norm": "input_layernorm",
        "mlp_norm": plan.family.mlp_norm,
        "attention_post_norm": plan.family.attention_post_norm,
        "mlp_post_norm": plan.family.mlp_post_norm,
        "query_norm": "self_attn.q_norm",
        "key_norm": "self_attn.k_norm",
    }
    biases = {part: (f"{prefix}{module}.bias", rows) for part, (module, rows) in plan.places.items()}
    return (
        {part: packed[f"{index}.{part}"] for part in plan.places}
        | {f"{p}_bias": weights.vector(name)[rows] if name in plan.due else None for p, (name, rows) in biases.items()}
        | {key: _norm(plan, weights, f"{prefix}{module}.weight") for key, module in norms.items()}
        | {
            "inverse_frequencies": plan.rotations[index].inverse_frequencies,
            "rotary_scale": plan.rotations[index].scale,
            "window": plan.windows[index],
        }
    )


def _parents(tree: TokenTree | None) -> Bytes:
    return np.array(tree.parents if tree else (), dtype=np.int32)
