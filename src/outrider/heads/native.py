"""Heads on the CPU kernels: the blocks of a step are one call, from rows to answers and logits.

A torch module costs several times its arithmetic in calls of torch.  Here what a head does is a value, its ``Parts``,
which the decoder of the kernels runs on the module's own packed matrices; the module stays the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from outrider.heads.block_runner import BlockRunner, DraftBlock
from outrider.heads.blocks import Attention, BlockShape, GatedNetwork
from outrider.heads.dspark import DSparkHead, Slots
from outrider.heads.eagle import EagleHead
from outrider.heads.eagle3 import Eagle3Head
from outrider.heads.packed import PackedLinear
from outrider.heads.runner import FeatureRunner
from outrider.kernels.native import cpu
from outrider.kv.pool import PagedCache
from outrider.models.base import TargetModel
from outrider.models.native.kernel_pass import half_store, row_bytes, shares
from outrider.models.native.weights import pack_all, stored_matrix
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
        parts: what they are made of; matrices that are not packed are multiplied in fp32.
    """

    def __init__(self, parts: Parts) -> None:
        shape = parts.shape
        self.width, self.vocabulary = shape.width, 0 if parts.lm_head is None else parts.lm_head.out_features
        self._answers = len(parts.blocks) if parts.answers_normed else len(parts.blocks) - 1
        self._heads, self._head_width = len(parts.blocks) * shape.key_heads, shape.head_width
        self._decoder = cpu.Decoder(
            _sizes(parts, self.vocabulary),
            [_layer(parts, block) for block in parts.blocks],
            {
                "entry": _matrix(parts.entry),
                "entry_bias": _numbers(getattr(parts.entry, "bias", None)),
                "entry_norm": _weight(parts.entry_norm),
                "final_norm": _weight(parts.final_norm),
                "head": _matrix(parts.lm_head),
            },
        )
        self.row_bytes = row_bytes(self._heads, self._head_width)

    def forward(
        self,
        rows: torch.Tensor,
        beside: torch.Tensor | None,
        batch: TreeBatch,
        cache: PagedCache,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute every row of a batch, writing its keys and values into the cache.

        Args:
            rows: fp32 [rows, width].
            beside: fp32 [rows, width], for a head that reads two rows side by side; None for others.
            batch: where the rows stand.
            cache: the head's pages, already extended.
            wanted: int64, rows that get logits; None is the batch's.

        Returns:
            The answers [rows, width], and logits [wanted rows, vocabulary]: no columns where the head has no LM head.
        """
        wanted = batch.wanted if wanted is None else wanted
        store = half_store(cache, self._heads, self._head_width)
        answers = torch.empty(len(rows), self.width)
        logits = torch.empty(len(wanted), self.vocabulary)
        self._decoder.forward_rows(
            rows.contiguous().numpy(),
            None if beside is None else beside.contiguous().numpy(),
            batch.positions.numpy(),
            shares(batch, cache),
            store.keys,
            store.values,
            wanted.numpy(),
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
    """An EAGLE head that is ready to run on the CPU kernels."""

    def __init__(self, head: Any, target: TargetModel) -> None:
        super().__init__(head, target)
        self._stack = Stack(parts_of(self._head))
        self.row_bytes = self._stack.row_bytes

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, features: torch.Tensor, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`outrider.drafters._feature_drafter.FeatureModel`."""
        answers, logits = self._stack.forward(features, self._embed(batch.tokens), batch, cache)
        if not self._stack.vocabulary:
            logits = self._target.unembed(answers[batch.wanted])
        return answers, self._ids.spread(logits)


class NativeBlockRunner(BlockRunner):
    """A block head that is ready to run on the CPU kernels."""

    def __init__(self, head: DSparkHead, target: TargetModel) -> None:
        super().__init__(head, target)
        self._stack = Stack(parts_of(self._head))
        self.row_bytes = self._stack.row_bytes

    @torch.inference_mode()
    def extend(self, batch: TreeBatch, features: Sequence[torch.Tensor], cache: PagedCache) -> None:
        """See :class:`outrider.heads.block_runner.BlockRunner`."""
        self._stack.write_keys(self._head.fuse([rows.float() for rows in features]), batch, cache)

    @torch.inference_mode()
    def block(self, batch: TreeBatch, cache: PagedCache) -> DraftBlock:
        """See :class:`outrider.heads.block_runner.BlockRunner`."""
        drafted = torch.arange(len(batch.tokens)).view(-1, self.slots)[:, -self.drafts :]
        answers, logits = self._stack.forward(self._embed(batch.tokens), None, batch, cache, wanted=drafted.flatten())
        hidden = answers[drafted]
        if not self._stack.vocabulary:
            logits = self._target.unembed(hidden.flatten(0, 1))
        return DraftBlock(self._head, Slots(hidden, logits.unflatten(0, drafted.shape)), self._ids)


def feature_runner(head: Any, target: TargetModel) -> FeatureRunner:
    """An EAGLE head, ready to run where its target does."""
    return (NativeFeatureRunner if _kernels_serve(target) else FeatureRunner)(head, target)


def block_runner(head: DSparkHead, target: TargetModel) -> BlockRunner:
    """A block head, ready to run where its target does."""
    return (NativeBlockRunner if _kernels_serve(target) else BlockRunner)(head, target)


def _kernels_serve(target: TargetModel) -> bool:
    return cpu is not None and target.device.type == "cpu"


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


def _layer(parts: Parts, block: BlockParts) -> dict[str, Any]:
    frequencies, scale = parts.rotation
    linears = {name: attrgetter(path)(block) for name, path in _MATRICES.items()}
    return (
        {name: _matrix(linear) for name, linear in linears.items()}
        | {f"{name}_bias": _numbers(linear.bias) for name, linear in linears.items()}
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


def _matrix(linear: Any) -> Any:
    """The kernels' matrix of a linear layer, shared with it if it is packed."""
    if linear is None or isinstance(linear, PackedLinear):
        return linear and linear.matrix
    return pack_all({"": stored_matrix(linear.weight)})[0][""]


def _weight(norm: nn.Module | None) -> np.ndarray[Any, Any] | None:
    return _numbers(getattr(norm, "weight", None))


def _numbers(vector: torch.Tensor | None) -> np.ndarray[Any, Any] | None:
    return None if vector is None else vector.detach().float().clone().numpy()
