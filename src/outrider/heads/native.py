"""Heads on the CPU kernels: one call computes all blocks of a step, from rows to answers and logits.

On torch, calls cost several times the arithmetic.  A head describes its computation as ``HeadParts``, which the
kernels' decoder runs on the module's own packed matrices.  The module stays the specification, and runs on torch if it
describes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from outrider.heads.blocks import BlockParts, HeadParts, Slots
from outrider.heads.packed_linear import PackedLinear
from outrider.heads.runner import BlockHead, BlockRunner, DraftedBlock, FeatureHead, FeatureRunner, Head
from outrider.kernels.native import cpu
from outrider.kv.pool import PagedCache
from outrider.models.base import TargetModel
from outrider.models.native.kernel_pass import half_store, row_bytes, shares
from outrider.models.native.packed_weights import pack_all, stored_matrix
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


class Stack:
    """A head's blocks on the CPU kernels; matrices that are not packed are multiplied in fp32.

    A row's answer and logits have the same bits whatever else is in the pass.
    """

    def __init__(self, parts: HeadParts) -> None:
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
        """Compute every row of a batch, fp32 [rows, width], and write its keys and values into extended pages.

        ``beside`` has the other rows of a head that reads two side by side.  ``wanted`` are the rows that need logits;
        None is the batch's.

        Returns:
            Answers [rows, width], and logits [wanted rows, vocabulary], without columns if there is no LM head.
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
        """Write every block's keys and values of context rows, fp32 [rows, width], which no block changes."""
        store = half_store(cache, self._heads, self._head_width)
        self._decoder.write_keys(
            rows.contiguous().numpy(), batch.positions.numpy(), shares(batch, cache), store.keys, store.values
        )


class NativeFeatureRunner(FeatureRunner):
    """Runs a feature head on the CPU kernels."""

    def __init__(self, head: FeatureHead, target: TargetModel) -> None:
        super().__init__(head, target)
        self._stack = _stack(self._head)
        self.row_bytes = self._stack.row_bytes

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, features: torch.Tensor, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
        answers, logits = self._stack.forward(features, self._embed(batch.tokens), batch, cache)
        if not self._stack.vocabulary:
            logits = self._target.unembed(answers[batch.wanted])
        return answers, self._ids.spread(logits)


class NativeBlockRunner(BlockRunner):
    """Runs a block head on the CPU kernels."""

    def __init__(self, head: BlockHead, target: TargetModel) -> None:
        super().__init__(head, target)
        self._stack = _stack(self._head)
        self.row_bytes = self._stack.row_bytes

    @torch.inference_mode()
    def extend(self, batch: TreeBatch, features: Sequence[torch.Tensor], cache: PagedCache) -> None:
        self._stack.write_keys(self._head.fuse([rows.float() for rows in features]), batch, cache)

    @torch.inference_mode()
    def block(self, batch: TreeBatch, cache: PagedCache) -> DraftedBlock:
        drafted = torch.arange(len(batch.tokens)).view(-1, self.slots)[:, -self.drafts :]
        answers, logits = self._stack.forward(self._embed(batch.tokens), None, batch, cache, wanted=drafted.flatten())
        hidden = answers[drafted]
        if not self._stack.vocabulary:
            logits = self._target.unembed(hidden.flatten(0, 1))
        return DraftedBlock(self._head, Slots(hidden, logits.unflatten(0, drafted.shape)), self._ids)


def feature_runner(head: FeatureHead, target: TargetModel) -> FeatureRunner:
    """Make the runner for a feature head on its target's device."""
    return (NativeFeatureRunner if _kernels_serve(head, target) else FeatureRunner)(head, target)


def block_runner(head: BlockHead, target: TargetModel) -> BlockRunner:
    """Make the runner for a block head on its target's device."""
    return (NativeBlockRunner if _kernels_serve(head, target) else BlockRunner)(head, target)


def _kernels_serve(head: Head, target: TargetModel) -> bool:
    return cpu is not None and target.device.type == "cpu" and head.parts() is not None


def _stack(head: Head) -> Stack:
    parts = head.parts()
    assert parts is not None, "called only for heads that the kernels can run"
    return Stack(parts)


def _sizes(parts: HeadParts, vocabulary: int) -> dict[str, Any]:
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


def _layer(parts: HeadParts, block: BlockParts) -> dict[str, Any]:
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
    """The kernels' matrix of a linear layer; a packed layer shares its own."""
    if linear is None or isinstance(linear, PackedLinear):
        return linear and linear.matrix
    return pack_all({"": stored_matrix(linear.weight)})[0][""]


def _weight(norm: nn.Module | None) -> np.ndarray[Any, Any] | None:
    return _numbers(getattr(norm, "weight", None))


def _numbers(vector: torch.Tensor | None) -> np.ndarray[Any, Any] | None:
    return None if vector is None else vector.detach().float().clone().numpy()
