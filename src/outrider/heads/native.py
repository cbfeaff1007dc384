"""Heads on the CPU kernels: the blocks of a step are one call, from rows to answers and logits.

A torch module costs several times its arithmetic in calls of torch.  Here what a head does is a value, its ``Parts``,
which the decoder of the kernels runs; the torch module stays the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from outrider.heads.blocks import Attention, BlockShape, GatedNetwork
from outrider.heads.dspark import DSparkHead
from outrider.heads.eagle import EagleHead
from outrider.heads.eagle3 import Eagle3Head
from outrider.heads.packed import Packing, pack
from outrider.heads.runner import FeatureRunner
from outrider.kernels.native import cpu
from outrider.kv.pool import PagedCache
from outrider.target.base import TargetModel
from outrider.target.native_pass import half_store, row_bytes, shares
from outrider.target.native_weights import pack_all, stored_matrix
from outrider.tree import TreeBatch

_MATRICES: Final = {
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "output": "attention.o_proj",
    "gate": "network.gate_proj",
    "up": "network.up_proj",
    "down": "network.down_proj",
}


@dataclass(frozen=True, eq=False)
class BlockParts:
    """What a block is made of; a norm without a weight is none."""

    attention: Attention
    network: GatedNetwork
    attention_norm: nn.Module | None
    network_norm: nn.Module
    beside_norm: nn.Module | None = None
    joins: bool = False
    """Whether attention reads [row beside it; row]."""


@dataclass(frozen=True, eq=False)
class Parts:
    """What a head's step is made of."""

    shape: BlockShape
    rotation: tuple[torch.Tensor, float]
    """Inverse frequencies, and what multiplies cosines and sines."""
    blocks: Sequence[BlockParts]
    entry: nn.Linear | None = None
    """Makes the first block's row of [row beside it; row]."""
    entry_norm: nn.Module | None = None
    """Of the first block's rows, the residual stream included."""
    final_norm: nn.Module | None = None
    lm_head: nn.Linear | None = None
    answers_normed: bool = False
    """Whether a step answers with rows after the final norm."""


def _blocks(layers: Any) -> list[BlockParts]:
    return [
        BlockParts(layer.self_attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm)
        for layer in layers
    ]


def _eagle(head: EagleHead) -> Parts:
    return Parts(head.config.block, head.rotary.rotation, _blocks(head.layers), entry=head.fc)


def _eagle3(head: Eagle3Head) -> Parts:
    layer, first = head.midlayer, head.config.norm_before_residual
    block = BlockParts(
        layer.self_attn,
        layer.mlp,
        None if first else layer.hidden_norm,
        layer.post_attention_layernorm,
        beside_norm=layer.input_layernorm,
        joins=True,
    )
    return Parts(
        head.config.block,
        head.rotary.rotation,
        [block],
        entry_norm=layer.hidden_norm if first else None,
        final_norm=head.norm,
        lm_head=head.lm_head,
        answers_normed=head.config.norm_output,
    )


def _dspark(head: DSparkHead) -> Parts:
    return Parts(
        head.config.block,
        head.rotary.rotation,
        _blocks(head.layers),
        final_norm=head.norm,
        lm_head=head.lm_head,
        answers_normed=True,
    )


_PARTS: Final[dict[type[nn.Module], Callable[[Any], Parts]]] = {
    EagleHead: _eagle,
    Eagle3Head: _eagle3,
    DSparkHead: _dspark,
}


def parts_of(head: nn.Module) -> Parts:
    """What the step of a head is made of, for heads whose blocks the kernels know."""
    return _PARTS[type(head)](head)


class Stack:
    """A head's blocks on the CPU kernels.

    A row's answer and logits are the same bits whatever else is in the pass.

    Args:
        parts: what they are made of, in torch.
        packing: in which kinds their matrices are kept; None is fp32.
    """

    def __init__(self, parts: Parts, packing: Packing | None = None) -> None:
        shape, wanted = parts.shape, packing or Packing()
        linears = {
            f"{index}.{name}": _inner(block, path)
            for index, block in enumerate(parts.blocks)
            for name, path in _MATRICES.items()
        }
        ends = {"entry": parts.entry, wanted.head_name: parts.lm_head}
        linears |= {name: linear for name, linear in ends.items() if linear is not None}
        packed, self._arena = pack_all(
            {name: stored_matrix(linear.weight, wanted.kind(name)) for name, linear in linears.items()}
        )
        self.width, self.vocabulary = shape.width, 0 if parts.lm_head is None else parts.lm_head.out_features
        self._answers = len(parts.blocks) if parts.answers_normed else len(parts.blocks) - 1
        self._heads, self._head_width = len(parts.blocks) * shape.key_heads, shape.head_width
        self._decoder = cpu.Decoder(
            _sizes(parts, self.vocabulary),
            [_layer(parts, block, index, packed) for index, block in enumerate(parts.blocks)],
            {
                "entry": packed.get("entry"),
                "entry_bias": None if parts.entry is None else _numbers(parts.entry.bias),
                "entry_norm": _weight(parts.entry_norm),
                "final_norm": _weight(parts.final_norm),
                "head": packed.get(wanted.head_name),
            },
        )
        self.row_bytes = row_bytes(self._heads, self._head_width)

    def forward(
        self, rows: torch.Tensor, beside: torch.Tensor | None, batch: TreeBatch, cache: PagedCache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute every row of a batch, writing its keys and values into the cache.

        Args:
            rows: fp32 [rows, width].
            beside: fp32 [rows, width], for a head that reads two rows side by side; None for others.
            batch: where the rows stand.
            cache: the head's pages, already extended.

        Returns:
            The answers [rows, width], and logits [wanted rows, vocabulary]: no columns where the head has no LM head.
        """
        store = half_store(cache, self._heads, self._head_width)
        answers = torch.empty(len(rows), self.width)
        logits = torch.empty(len(batch.wanted), self.vocabulary)
        self._decoder.forward_rows(
            rows.contiguous().numpy(),
            None if beside is None else beside.contiguous().numpy(),
            batch.positions.numpy(),
            shares(batch, cache),
            store.keys,
            store.values,
            batch.wanted.numpy(),
            logits.numpy(),
            [(self._answers, answers.numpy())],
        )
        return answers, logits

    def write_keys(self, rows: torch.Tensor, batch: TreeBatch, cache: PagedCache) -> None:
        """Write every block's keys and values of rows that no block changes: a context that blocks attend to.

        Args:
            rows: fp32 [rows, width].
            batch: where they stand.
            cache: the head's pages, already extended.
        """
        store = half_store(cache, self._heads, self._head_width)
        self._decoder.write_keys(
            rows.contiguous().numpy(), batch.positions.numpy(), shares(batch, cache), store.keys, store.values
        )


class NativeFeatureRunner(FeatureRunner):
    """An EAGLE head that is ready to run on the CPU kernels.

    Args:
        head: an EAGLE network, in torch.
        target: whose rows it continues.
        packing: in which kinds its matrices are kept.
    """

    def __init__(self, head: Any, target: TargetModel, packing: Packing | None = None) -> None:
        super().__init__(head, target)
        self._stack = Stack(parts_of(head), packing)
        head.fc = pack(head.fc, packing)
        self.row_bytes = self._stack.row_bytes

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, features: torch.Tensor, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`outrider.drafters._feature_drafter.FeatureModel`."""
        answers, logits = self._stack.forward(features, self._target.embed(batch.tokens), batch, cache)
        if not self._stack.vocabulary:
            logits = self._target.unembed(answers[batch.wanted])
        return answers, self._ids.spread(logits)


def _sizes(parts: Parts, vocabulary: int) -> dict[str, Any]:
    shape = parts.shape
    return {
        "width": shape.width,
        "heads": shape.heads,
        "key_heads": shape.key_heads,
        "head_width": shape.head_width,
        "rotary_width": 2 * len(parts.rotation[0]),
        "inner": shape.inner,
        "vocabulary": vocabulary,
        "norm_epsilon": shape.norm_epsilon,
        "score_scale": shape.head_width**-0.5,
        "score_cap": 0.0,
        "logit_cap": 0.0,
        "embedding_scale": 1.0,
        "gelu": False,
    }


def _layer(parts: Parts, block: BlockParts, index: int, packed: dict[str, Any]) -> dict[str, Any]:
    frequencies, scale = parts.rotation
    return (
        {name: packed[f"{index}.{name}"] for name in _MATRICES}
        | {f"{name}_bias": _numbers(_inner(block, path).bias) for name, path in _MATRICES.items()}
        | {
            "attention_norm": _weight(block.attention_norm),
            "mlp_norm": _weight(block.network_norm),
            "beside_norm": _weight(block.beside_norm),
            "query_norm": _weight(block.attention.q_norm),
            "key_norm": _weight(block.attention.k_norm),
            "joins": block.joins,
            "inverse_frequencies": _numbers(frequencies),
            "rotary_scale": scale,
            "window": 0,
        }
    )


def _inner(block: BlockParts, path: str) -> nn.Linear:
    part, _, name = path.partition(".")
    found: nn.Linear = getattr(getattr(block, part), name)
    return found


def _weight(norm: nn.Module | None) -> np.ndarray[Any, Any] | None:
    return _numbers(getattr(norm, "weight", None))


def _numbers(vector: Any) -> np.ndarray[Any, Any] | None:
    return None if vector is None else vector.detach().float().contiguous().numpy().copy()
