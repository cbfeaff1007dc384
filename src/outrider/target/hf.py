"""Any causal language model of transformers with standard attention, its own code unmodified.

The pass is one flat ``[1, rows]`` batch.  Our attention function is registered without a mask function, so that the
model builds no dense mask; the plan of the pass reaches it as a keyword argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from outrider.kernels.reference import tree_attention
from outrider.kv.pool import LayerStore, PagedCache
from outrider.target import hf_names
from outrider.target.base import TargetOutput
from outrider.tree import TreeBatch

ATTENTION = "outrider"


@dataclass(eq=False)
class SequencePlan:
    """Where one sequence's rows and keys lie in a pass."""

    rows: slice
    columns: int
    """Cached rows it reads, its own included."""
    slots: slice | torch.Tensor
    """The cache slots of those rows: a slice where its pages lie side by side."""
    positions: torch.Tensor
    """int64 [rows]."""
    tail_positions: torch.Tensor
    """int64 [tail]: positions of the columns that are not yet committed."""
    visible: torch.Tensor
    """bool [rows, tail]: ancestors and self among those columns."""
    _hidden: dict[int | None, tuple[int, torch.Tensor | None]] = field(default_factory=dict)

    def hidden(self, window: int | None) -> tuple[int, torch.Tensor | None]:
        """First column any row sees, and bool [rows, m] of what each must not see in the last ``m`` columns."""
        if window not in self._hidden:
            self._hidden[window] = self._without_window() if window is None else self._within(window)
        return self._hidden[window]

    def _without_window(self) -> tuple[int, torch.Tensor | None]:
        return 0, None if self.visible.numel() == 1 else ~self.visible

    def _within(self, window: int) -> tuple[int, torch.Tensor | None]:
        context = self.columns - len(self.tail_positions)
        first = min(context, max(0, int(self.positions.min()) - window + 1))
        before = torch.arange(first, context, device=self.positions.device)
        columns = torch.cat((before, self.tail_positions))
        hidden = columns <= self.positions.unsqueeze(1) - window
        hidden[:, len(before) :] |= ~self.visible
        return first, hidden


class PassPlan:
    """Everything the attention of one pass needs, made once and read by every layer."""

    def __init__(self, batch: TreeBatch, cache: PagedCache) -> None:
        self._cache = cache
        device = batch.tokens.device
        self.sequences: list[SequencePlan] = []
        written = []
        for index, sequence in enumerate(batch.sequences):
            table = cache.table(sequence.key)
            start, columns = batch.starts[index], sequence.context + sequence.tail
            rows = slice(start, start + sequence.rows)
            slots = table.slots(0, columns)
            written.append(slots[sequence.context + sequence.skip :])
            self.sequences.append(
                SequencePlan(
                    rows=rows,
                    columns=columns,
                    slots=slice(table.slot(0), table.slot(0) + columns) if table.contiguous else slots.to(device),
                    positions=batch.positions[rows],
                    tail_positions=torch.tensor(sequence.tail_positions, device=device),
                    visible=batch.visible(index),
                )
            )
        self._written = torch.cat(written).to(device)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Write the pass's keys and values of a layer, then attend.

        Args:
            layer: index of the layer.
            query: [rows, query heads, width].
            key: [rows, key heads, width].
            value: [rows, key heads, value width].
            scaling: multiplies the scores.
            window: a row sees this many positions, its own included; None sees all.
            softcap: see :func:`outrider.kernels.reference.tree_attention`.
            sinks: see there.

        Returns:
            [rows, query heads, value width].
        """
        store = self._cache.layers.get(layer)
        if store is None:
            store = self._cache.layers[layer] = LayerStore(self._cache.slots, key, value)
        store.keys.index_copy_(0, self._written, key)
        store.values.index_copy_(0, self._written, value)
        mixed = [
            self._attend_one(plan, store, query[plan.rows], window, scaling=scaling, softcap=softcap, sinks=sinks)
            for plan in self.sequences
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _attend_one(
        self, plan: SequencePlan, store: LayerStore, query: torch.Tensor, window: int | None, **options: Any
    ) -> torch.Tensor:
        keys, values = store.keys[plan.slots], store.values[plan.slots]
        first, hidden = plan.hidden(window)
        return tree_attention(query, keys[first:], values[first:], hidden, **options)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls: [1, heads, rows, width] in, [1, rows, heads, width] out."""
    plan: PassPlan = options[hf_names.PLAN]
    call = hf_names.read_attention_call(module, options, width=query.shape[-1])
    mixed = plan.attend(
        call.layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling=call.scaling,
        window=call.window,
        softcap=call.softcap,
        sinks=call.sinks,
    )
    return mixed.unsqueeze(0), None


class HFModel:
    """A transformers model behind the :class:`outrider.target.base.TargetModel` protocol.

    Args:
        module: a causal model whose attention implementation is ``ATTENTION``.
        architecture: its class, for messages.
        context_length: most positions to serve.

    Raises:
        ModelError: its state cannot be rolled back, or its attention cannot be replaced.
    """

    row_invariant = False  # torch's matrix products choose their blocking by the number of rows

    def __init__(self, module: torch.nn.Module, *, architecture: str, context_length: int) -> None:
        hf_names.check_servable(module, architecture)
        self.module, self.context_length = module, context_length
        self.vocabulary = hf_names.vocabulary(module)
        self.device = next(module.parameters()).device
        self._layers = hf_names.decoder_layers(module)

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        """See :class:`outrider.target.base.TargetModel`."""
        hidden: dict[int, torch.Tensor] = {}
        hooks = [self._layers[layer].register_forward_hook(_keep(hidden, layer)) for layer in layers]
        try:
            logits = hf_names.call(self.module, batch.tokens, batch.positions, batch.wanted, PassPlan(batch, cache))
        finally:
            for hook in hooks:
                hook.remove()
        return TargetOutput(logits, hidden)


def _keep(hidden: dict[int, torch.Tensor], layer: int) -> Any:
    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        hidden[layer] = (output[0] if isinstance(output, tuple) else output)[0]

    return hook


hf_names.register_attention(ATTENTION, _attention)
