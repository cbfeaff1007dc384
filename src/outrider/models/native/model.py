"""Dense decoders on Outrider's own CPU kernels: a pass over several rows costs less than as many passes.

:mod:`outrider.models.native.decoder_plan` reads the kernels' arguments from the model's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.errors import ModelError, one_line
from outrider.kernels.native import cpu
from outrider.kv.pool import PagedCache
from outrider.models.base import Rollback, TargetOutput, check_layers
from outrider.models.files.weight_files import MappedTensors
from outrider.models.hf.blueprint import blueprint
from outrider.models.loading import ModelFiles
from outrider.models.native.decoder_plan import DecoderPlan, reason_against
from outrider.models.native.kernel_pass import half_store, row_bytes, shares
from outrider.models.native.packed_cache import PackedEntry
from outrider.models.native.packed_weights import (
    Bytes,
    GGUFWeights,
    Quantization,
    RequantizedWeights,
    StoredMatrix,
    TensorWeights,
    WeightSource,
    pack_all,
)
from outrider.tree import TreeBatch


@contextmanager
def _naming(model: str) -> Iterator[None]:
    """Turn whatever transformers raises for an impossible configuration into one sentence."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{model}: no model can be built from its configuration: {one_line(error)}") from error


class NativeModel:
    """A dense decoder on the CPU, as :class:`outrider.models.base.TargetModel`.

    Its configuration is transformers', of a family in :data:`outrider.models.native.decoder_plan.FAMILIES`.  ``kept``
    is the packed model on disk, to read or write.

    Raises:
        ModelError: the configuration or a weight is not supported.
    """

    backend = "native"
    row_invariant = True
    own_threads = True
    rollback = Rollback.TREE
    row_buckets: tuple[int, ...] = ()
    device = torch.device("cpu")
    precision = "weights as stored, int8 activations"
    source: Path | None = None

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
            drawn = blueprint(config)
        weights.check(drawn.shapes)  # from here on, all sizes are those of real tensors
        with _naming(name):
            plan = DecoderPlan.of(config, drawn, context_length)
        self.context_length = context_length
        self._shape, self.layers = plan.shape, plan.layers
        self.vocabulary, self.width = plan.shape.vocabulary, plan.shape.width
        matrices = _matrices(plan, weights)
        packed, self._arena = pack_all(matrices, kept)
        self.packed_bytes = len(self._arena.bytes)
        self.token_bytes = sum(  # in the file's own bits
            m.stored_bytes for key, m in matrices.items() if key != "embedding" or "head" not in matrices
        )
        layers = [_layer(plan, weights, packed, i) for i in range(plan.layers)]
        ends = {
            "embedding": packed["embedding"],
            "final_norm": _norm(plan, weights, "model.norm.weight"),
            "head": packed.get("head", packed["embedding"]),
        }
        self._decoder = cpu.Decoder(vars(plan.shape), layers, ends)
        self._heads = plan.layers * self._shape.key_heads
        self.row_bytes = row_bytes(self._heads, self._shape.head_width)

    @classmethod
    def of(
        cls, files: ModelFiles, *, quantization: Quantization = Quantization.NONE, context_length: int
    ) -> NativeModel:
        """Load a model from its files (see :func:`outrider.models.loading.open_model`), quantised on the way.

        Raises:
            ModelError: a weight is missing or not supported.
        """
        source: WeightSource
        if files.gguf is None:
            source = TensorWeights(MappedTensors(files.weight_files), name=files.name)
        else:
            source = GGUFWeights(*files.gguf)
        source = RequantizedWeights(source, quantization)
        kept = PackedEntry(files.weight_files, quantization.value)
        model = cls(files.config, source, context_length=context_length, name=files.name, kept=kept)
        model.source = files.path
        return model

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        check_layers(layers, self.layers)
        store = half_store(cache, self._heads, self._shape.head_width)
        logits = torch.empty(len(batch.wanted), self.vocabulary)
        hidden = {layer: torch.empty(len(batch.tokens), self.width) for layer in layers}
        self._decoder.forward(
            batch.tokens.numpy(),
            batch.positions.numpy(),
            shares(batch, cache),
            store.keys,
            store.values,
            batch.wanted.numpy(),
            logits.numpy(),
            [(layer, rows.numpy()) for layer, rows in hidden.items()],
        )
        return TargetOutput(logits, hidden)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(len(tokens), self.width)
        self._decoder.embed(tokens.contiguous().numpy(), rows.numpy())
        return rows

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = torch.empty(len(hidden), self.vocabulary)
        self._decoder.unembed(hidden.contiguous().numpy(), logits.numpy())
        return logits

    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(len(ids), self.width)
        self._decoder.head_rows(ids.contiguous().numpy(), rows.numpy())
        return rows


def _matrices(plan: DecoderPlan, weights: WeightSource) -> dict[str, StoredMatrix]:
    """All matrices, in the order a pass reads them."""
    matrices = {
        f"{i}.{part}": weights.matrix(f"model.layers.{i}.{module}.weight").part(rows)
        for i in range(plan.layers)
        for part, (module, rows) in plan.places.items()
    }
    ends = {"embedding": "model.embed_tokens.weight", "head": "lm_head.weight"}
    return matrices | {key: weights.matrix(name) for key, name in ends.items() if name in plan.due}


def _norm(plan: DecoderPlan, weights: WeightSource, name: str) -> Bytes | None:
    return weights.vector(name) + np.float32(plan.family.norm_offset) if name in plan.due else None


def _layer(plan: DecoderPlan, weights: WeightSource, packed: Mapping[str, Any], index: int) -> dict[str, Any]:
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
