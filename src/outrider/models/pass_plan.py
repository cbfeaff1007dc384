"""The attention of one pass: prepared once, used by every layer."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from outrider.kernels.fused import fused_attention, spread_bias
from outrider.kernels.reference import tree_attention
from outrider.kv.pool import PagedCache
from outrider.kv.state import LayerStore
from outrider.tree import TreeBatch


class Reach(NamedTuple):
    """How far back a row sees; with two Nones, attention is full."""

    window: int | None = None
    """Number of positions, the row's own included."""
    chunk: int | None = None
    """Length of chunks, counted from position 0; a row sees only its own chunk (Llama 4)."""


class AttentionCall(NamedTuple):
    """Options of one layer's attention."""

    scaling: float
    """Multiplies the scores."""
    reach: Reach = Reach()
    softcap: float | None = None
    """Scores become ``softcap · tanh(score / softcap)`` (Gemma 2)."""
    sinks: torch.Tensor | None = None
    """[query heads], logits of a column that takes probability and gives no value (gpt-oss)."""


@dataclass(eq=False)
class SequencePlan:
    """Rows and cached keys of one sequence in a pass."""

    rows: slice
    columns: int
    """Number of cached rows to read, its own included."""
    slots: slice | torch.Tensor
    """Cache slots of these rows; a slice if its pages are adjacent."""
    positions: torch.Tensor
    """int64 [rows]."""
    tail_positions: torch.Tensor
    """int64 [tail], positions of the uncommitted columns."""
    visible: torch.Tensor
    """bool [rows, tail]: which of these columns each row sees, its ancestors and itself."""
    _hidden: dict[Reach, tuple[int, torch.Tensor | None]] = field(default_factory=dict)
    _bias: dict[tuple[Reach, torch.dtype, int], torch.Tensor | None] = field(default_factory=dict)

    def hidden(self, reach: Reach) -> tuple[int, torch.Tensor | None]:
        """First column that any row sees, and bool [rows, m] of what each must not see in the last ``m`` columns."""
        if reach not in self._hidden:
            self._hidden[reach] = self._hidden_by(reach)
        return self._hidden[reach]

    def bias(self, reach: Reach, dtype: torch.dtype, group: int) -> tuple[int, torch.Tensor | None]:
        """First column that any row sees, and the bias of the scores from there; see ``spread_bias``."""
        first, hidden = self.hidden(reach)
        options = reach, dtype, group
        if options not in self._bias:
            columns = self.columns - first
            self._bias[options] = None if hidden is None else spread_bias(hidden, columns, dtype, group)
        return first, self._bias[options]

    def _hidden_by(self, reach: Reach) -> tuple[int, torch.Tensor | None]:
        if reach == Reach():
            return 0, None if self.visible.numel() == 1 else ~self.visible
        context = self.columns - len(self.tail_positions)
        nearest, oldest = self.positions.unsqueeze(1), torch.zeros_like(self.positions)
        if reach.window is not None:
            oldest = torch.maximum(oldest, self.positions - reach.window + 1)
        if reach.chunk is not None:
            oldest = torch.maximum(oldest, self.positions // reach.chunk * reach.chunk)
        first = min(context, int(oldest.min()))
        before = torch.arange(first, context, device=nearest.device)
        columns = torch.cat((before, self.tail_positions))
        hidden = columns < oldest.unsqueeze(1)
        hidden[:, len(before) :] |= ~self.visible
        return first, hidden


class PassPlan:
    """Prepares the attention of one pass.

    A layer's store has the number of the layer's call in the pass, not its index: a model that runs a layer twice has
    two
    stores, and layers that share keys have one.
    """

    def __init__(self, batch: TreeBatch, cache: PagedCache) -> None:
        self.calls = 0
        """Number of attention calls so far."""
        self._cache = cache
        self._device = batch.tokens.device
        self._sequences: list[SequencePlan] = []
        self._seen: dict[tuple[int, int], tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], LayerStore]] = {}
        written = [self._plan_sequence(batch, index) for index in range(len(batch.sequences))]
        self._written = _as_slice(written[0]) if len(written) == 1 else torch.cat(written).to(self._device)

    def _plan_sequence(self, batch: TreeBatch, index: int) -> torch.Tensor:
        """Plan one sequence, and return the cache slots of its rows, int64 [rows]."""
        sequence = batch.sequences[index]
        table = self._cache.table(sequence.key)
        start, columns = batch.starts[index], sequence.context + sequence.tail
        rows = slice(start, start + sequence.rows)
        slots = torch.from_numpy(table.slots(0, columns))
        self._sequences.append(
            SequencePlan(
                rows=rows,
                columns=columns,
                slots=slice(table.slot(0), table.slot(0) + columns) if table.contiguous else slots.to(self._device),
                positions=batch.positions[rows],
                tail_positions=torch.tensor(sequence.tail_positions, device=self._device),
                visible=batch.visible(index),
            )
        )
        return slots[sequence.context + sequence.skip :]

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """Write the pass's keys and values of a layer, then attend.

        Queries are [1, query heads, rows, width]; keys and values [1, key heads, rows, width], whose widths may differ.

        Returns:
            Contiguous [1, rows, query heads, value width].
        """
        store = self.write(keys, values)
        plain = call.softcap is None and call.sinks is None and keys.shape[-1] == values.shape[-1]
        attend_one = self._attend_fused if plain else self._attend_reference
        mixed = [attend_one(plan, store, query[0, :, plan.rows], call) for plan in self._sequences]
        return (mixed[0].contiguous() if len(mixed) == 1 else torch.cat(mixed)).unsqueeze(0)

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> LayerStore:
        """Write the pass's keys and values of the next layer, [1, key heads, rows, width] each; see :meth:`attend`."""
        seen = self._seen.get((id(keys), id(values)))
        if seen is not None and seen[0]() is keys and seen[1]() is values:  # a layer that shares an earlier one's
            return seen[2]
        store = self._cache.layer(self.calls, lambda: LayerStore(self._cache.slots, keys[0], values[0]))
        self.calls += 1
        store.keys[:, self._written] = keys[0]
        store.values[:, self._written] = values[0]
        self._seen[id(keys), id(values)] = weakref.ref(keys), weakref.ref(values), store
        return store

    @staticmethod
    def _attend_fused(plan: SequencePlan, store: LayerStore, query: torch.Tensor, call: AttentionCall) -> torch.Tensor:
        first, bias = plan.bias(call.reach, query.dtype, query.shape[0] // store.keys.shape[0])
        keys, values = store.keys[:, plan.slots], store.values[:, plan.slots]
        return fused_attention(query, keys[:, first:], values[:, first:], bias, scaling=call.scaling)

    @staticmethod
    def _attend_reference(
        plan: SequencePlan, store: LayerStore, query: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        first, hidden = plan.hidden(call.reach)
        keys, values = store.keys[:, plan.slots], store.values[:, plan.slots]
        return tree_attention(
            query,
            keys[:, first:],
            values[:, first:],
            hidden,
            scaling=call.scaling,
            softcap=call.softcap,
            sinks=call.sinks,
        )


def _as_slice(slots: torch.Tensor) -> slice | torch.Tensor:
    """Turn adjacent slots into a slice: writing through it is a plain copy."""
    first, count = int(slots[0]), len(slots)
    adjacent = int(slots[-1]) == first + count - 1 and bool((slots.diff() == 1).all())
    return slice(first, first + count) if adjacent else slots
