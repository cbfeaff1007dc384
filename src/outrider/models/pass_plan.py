"""What the attention of one pass needs, made once and read by every layer."""

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
    """How far back a layer lets a row see; two Nones are full attention."""

    window: int | None = None
    """This many positions, the row's own included."""
    chunk: int | None = None
    """Positions of its own chunk, chunks being this long and counted from position 0 (Llama 4)."""


class AttentionCall(NamedTuple):
    """What one layer asks of attention beside its tensors."""

    scaling: float
    """Multiplies the scores."""
    reach: Reach = Reach()
    softcap: float | None = None
    """Scores become ``softcap · tanh(score / softcap)`` (Gemma 2)."""
    sinks: torch.Tensor | None = None
    """[query heads], logits of a column that takes probability and gives no value (gpt-oss)."""


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
    _hidden: dict[Reach, tuple[int, torch.Tensor | None]] = field(default_factory=dict)
    _bias: dict[tuple[Reach, torch.dtype, int], torch.Tensor | None] = field(default_factory=dict)

    def hidden(self, reach: Reach) -> tuple[int, torch.Tensor | None]:
        """First column any row sees, and bool [rows, m] of what each must not see in the last ``m`` columns."""
        if reach not in self._hidden:
            self._hidden[reach] = self._everything() if reach == Reach() else self._within(reach)
        return self._hidden[reach]

    def bias(self, reach: Reach, dtype: torch.dtype, group: int) -> tuple[int, torch.Tensor | None]:
        """First column any row sees, and what to add to each score from there: see ``spread_bias``."""
        first, hidden = self.hidden(reach)
        key = reach, dtype, group
        if key not in self._bias:
            columns = self.columns - first
            self._bias[key] = None if hidden is None else spread_bias(hidden, columns, dtype, group)
        return first, self._bias[key]

    def _everything(self) -> tuple[int, torch.Tensor | None]:
        return 0, None if self.visible.numel() == 1 else ~self.visible

    def _within(self, reach: Reach) -> tuple[int, torch.Tensor | None]:
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
    """Everything the attention of one pass needs.

    A layer's keys and values live in the store numbered by its turn in the pass, not by its index: a model that runs
    a layer twice keeps two sets of keys, and one whose layers share keys keeps one.
    """

    def __init__(self, batch: TreeBatch, cache: PagedCache) -> None:
        self.calls = 0
        """How many times attention was asked so far."""
        self._cache = cache
        self._device = batch.tokens.device
        self._sequences: list[SequencePlan] = []
        self._seen: dict[tuple[int, int], tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], LayerStore]] = {}
        written = [self._plan_sequence(batch, index) for index in range(len(batch.sequences))]
        self._written = _as_slice(written[0]) if len(written) == 1 else torch.cat(written).to(self._device)

    def _plan_sequence(self, batch: TreeBatch, index: int) -> torch.Tensor:
        """Plan one sequence and return the cache slots its rows are written to, int64 [rows]."""
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

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall) -> torch.Tensor:
        """Write the pass's keys and values of a layer, then attend.

        Args:
            query: [1, query heads, rows, width].
            key: [1, key heads, rows, width].
            value: [1, key heads, rows, value width].
            call: what the layer asks.

        Returns:
            [1, rows, query heads, value width], in one piece: some families view it as something else.
        """
        store = self.write(key, value)
        plain = call.softcap is None and call.sinks is None and key.shape[-1] == value.shape[-1]
        attend_one = self._attend_fused if plain else self._attend_reference
        mixed = [attend_one(plan, store, query[0, :, plan.rows], call) for plan in self._sequences]
        return (mixed[0].contiguous() if len(mixed) == 1 else torch.cat(mixed)).unsqueeze(0)

    def write(self, key: torch.Tensor, value: torch.Tensor) -> LayerStore:
        """Write the pass's keys and values of the next layer, [1, key heads, rows, width] each; see :meth:`attend`."""
        seen = self._seen.get((id(key), id(value)))
        if seen is not None and seen[0]() is key and seen[1]() is value:  # a layer that was handed an earlier layer's
            return seen[2]
        store = self._cache.layer(self.calls, lambda: LayerStore(self._cache.slots, key[0], value[0]))
        self.calls += 1
        store.keys[:, self._written] = key[0]
        store.values[:, self._written] = value[0]
        self._seen[id(key), id(value)] = weakref.ref(key), weakref.ref(value), store
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
    """The same slots as a slice where they lie side by side: writing through a slice is a plain copy."""
    first, count = int(slots[0]), len(slots)
    return slice(first, first + count) if int(slots[-1]) == first + count - 1 and _rises(slots) else slots


def _rises(slots: torch.Tensor) -> bool:
    return bool((slots[1:] - slots[:-1] == 1).all())
