"""Dense decoders on Outrider's own CPU kernels: a pass over several rows costs little more than a pass over one.

There is one definition of a decoder, driven by the model's configuration.  What a family has that others have not is a
value: a tensor that is there or not, or an entry of its row in ``FAMILIES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from outrider.errors import ModelError
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import LayerStore, PagedCache
from outrider.target import hf_names
from outrider.target.base import TargetOutput
from outrider.target.loading import ModelFiles
from outrider.target.native_weights import (
    Bytes,
    GGUFWeights,
    MappedTensors,
    Quantization,
    RequantizedWeights,
    TensorWeights,
    WeightSource,
    pack_all,
)
from outrider.target.packed_cache import PackedEntry
from outrider.tree import TokenTree, TreeBatch

_GROUP: Final = 32


@dataclass(frozen=True)
class Family:
    """What sets a family apart, beyond the tensors it has."""

    norm_offset: float = 0.0
    """Added to every norm weight."""
    scales_embedding: bool = False
    """Whether embeddings are multiplied by the square root of the width."""
    mlp_norm: str = "post_attention_layernorm"
    attention_post_norm: str = ""
    mlp_post_norm: str = ""


_GEMMA: Final = Family(
    norm_offset=1.0,
    scales_embedding=True,
    mlp_norm="pre_feedforward_layernorm",
    attention_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma3_text": _GEMMA,
}
"""transformers' model types that the decoder knows."""
_GELUS: Final = {"silu": False, "swish": False, "gelu_pytorch_tanh": True}
_BIASES: Final = {
    "query_bias": "self_attn.q_proj",
    "key_bias": "self_attn.k_proj",
    "value_bias": "self_attn.v_proj",
    "output_bias": "self_attn.o_proj",
    "gate_bias": "mlp.gate_proj",
    "up_bias": "mlp.up_proj",
    "down_bias": "mlp.down_proj",
}
_MATRICES: Final = {bias.removesuffix("_bias"): module for bias, module in _BIASES.items()}


def reason_against(config: Any) -> str | None:
    """Why the native backend cannot serve a configuration, as the end of a sentence, or None if it can."""
    if missing is not None:
        return missing
    kind = config.model_type
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        return f"the model type {kind!r} is not among those its decoder knows ({known})"
    if config.hidden_act not in _GELUS if hasattr(config, "hidden_act") else config.hidden_activation not in _GELUS:
        return "its activation function has no kernel"
    for option in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if getattr(config, option, None):
            return f"it uses {option}, which has no kernel"
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
    embedding_scale: float
    gelu: bool
    layers: int = field(metadata={"kernel": False})

    @classmethod
    def of(cls, config: Any, rotary_width: int) -> _Shape:
        family = FAMILIES[config.model_type]
        head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        scalar = getattr(config, "query_pre_attn_scalar", None) or head_width
        scale = torch.tensor(config.hidden_size**0.5).item() if family.scales_embedding else 1.0
        return cls(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_width=head_width,
            rotary_width=rotary_width,
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            norm_epsilon=config.rms_norm_eps,
            score_scale=scalar**-0.5,
            embedding_scale=scale,
            gelu=_GELUS[config.hidden_act if hasattr(config, "hidden_act") else config.hidden_activation],
            layers=config.num_hidden_layers,
        )


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
        self.context_length = context_length
        rotary = hf_names.rotary_frequencies(config, context_length)
        self._shape = _Shape.of(config, 2 * max(len(frequencies) for frequencies, _ in rotary))
        self.vocabulary = self._shape.vocabulary
        matrices = {key: weights.matrix(name) for key, name in _matrix_names(config).items()}
        packed, self._arena = pack_all(matrices, kept)
        self.packed_bytes = len(self._arena.bytes)
        self.token_bytes = sum(
            m.stored_bytes for key, m in matrices.items() if key != "embedding" or "head" not in matrices
        )
        """Bytes of weights, in the file's own bits, that one token reads."""
        layers = [self._layer(config, weights, packed, rotary[i], i) for i in range(self._shape.layers)]
        embedding = packed["embedding"]
        final_norm = self._norm(config, weights, "model.norm")
        self._decoder = cpu.Decoder(self._kernel_shape(), layers, embedding, final_norm, packed.get("head", embedding))
        self._stored_width = -(-self._shape.head_width // _GROUP) * _GROUP
        self.row_bytes = 2 * 2 * self._shape.layers * self._shape.key_heads * self._stored_width

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

    def _kernel_shape(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self._shape).items() if key != "layers"}

    def _norm(self, config: Any, weights: WeightSource, name: str) -> Bytes | None:
        found = weights.vector(f"{name}.weight") if name else None
        return None if found is None else found + np.float32(FAMILIES[config.model_type].norm_offset)

    def _layer(
        self,
        config: Any,
        weights: WeightSource,
        packed: Mapping[str, Any],
        rotary: tuple[torch.Tensor, float],
        index: int,
    ) -> dict[str, Any]:
        family, prefix = FAMILIES[config.model_type], f"model.layers.{index}."
        norms = {
            "attention_norm": "input_layernorm",
            "mlp_norm": family.mlp_norm,
            "attention_post_norm": family.attention_post_norm,
            "mlp_post_norm": family.mlp_post_norm,
            "query_norm": "self_attn.q_norm",
            "key_norm": "self_attn.k_norm",
        }
        layer: dict[str, Any] = {part: packed[f"{index}.{part}"] for part in _MATRICES}
        layer |= {key: weights.vector(f"{prefix}{module}.bias") for key, module in _BIASES.items()}
        layer |= {key: self._norm(config, weights, prefix + part) if part else None for key, part in norms.items()}
        frequencies, scale = rotary
        layer["inverse_frequencies"] = frequencies.float().contiguous().numpy()
        layer["rotary_scale"] = float(scale)
        layer["window"] = hf_names.layer_window(config, index) or 0
        return layer

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
        like = torch.empty(self._shape.layers * self._shape.key_heads, 0, self._stored_width, dtype=torch.float16)
        cache.layers[0] = LayerStore(cache.slots, like, like)
        return cache.layers[0]


def _matrix_names(config: Any) -> dict[str, str]:
    """Parameter of every matrix, in the order a pass reads them."""
    names = {
        f"{i}.{part}": f"model.layers.{i}.{module}.weight"
        for i in range(config.num_hidden_layers)
        for part, module in _MATRICES.items()
    }
    names["embedding"] = "model.embed_tokens.weight"
    if not config.tie_word_embeddings:
        names["head"] = "lm_head.weight"
    return names


def _parents(tree: TokenTree | None) -> Bytes:
    return np.array(tree.parents if tree else (), dtype=np.int32)
