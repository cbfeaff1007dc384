"""Drafting with heads that all read the row before the anchor: Medusa and blockwise decoding.

    target   x0  x1 … x(t−1)   xt = anchor
    heads             read this row and guess x(t+1), x(t+2) …, independently of each other

So a round costs one small pass, whatever the depth, and nodes of one level share their proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from outrider.drafters._growth import Failures, Growth, StaticTree, grow_level
from outrider.drafters.base import DraftContext, Drafter, DraftSequence, Needs, Outcome
from outrider.heads.runner import ParallelRunner
from outrider.tree import TokenTree


class _Last(NamedTuple):
    """The last committed row of a request."""

    position: int
    row: torch.Tensor


class ParallelDrafter(Drafter):
    """Grows a tree of fixed shape from one row of each request; adds the heads' layer to the method's needs."""

    def __init__(self, runner: ParallelRunner, shape: StaticTree, *, most_nodes: int, needs: Needs) -> None:
        self.needs = replace(needs, hidden_layers=(runner.hidden_layer,))
        self._runner, self._shape, self._most_nodes = runner, shape, most_nodes
        self._last: dict[str, _Last] = {}
        self._failures = Failures()

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        self.close(key)
        return most  # the heads read only the last row, which is always computed

    def observe(self, outcome: Outcome) -> None:
        hidden = outcome.output.hidden[self._runner.hidden_layer]
        for kept in outcome.committed:
            if kept.rows:
                self._last[kept.key] = _Last(kept.start + len(kept.rows) - 1, hidden[kept.rows[-1]].clone())

    def propose(self, context: DraftContext) -> list[TokenTree]:
        growing = [self._begin(sequence) for sequence in context.sequences]
        active = [growth for growth in growing if growth is not None]
        if active:
            logits = self._runner.logits(torch.stack([self._last[growth.sequence.key].row for growth in active]))
            self._grow(context, active, logits)
        return self._failures.finish(context, growing)

    def _begin(self, sequence: DraftSequence) -> Growth | None:
        """Start a tree; None if the row before the anchor is not known."""
        self._failures.check(sequence.key)
        last, before = self._last.get(sequence.key), len(sequence.tokens) - 2
        nodes = min(self._most_nodes, sequence.nodes)
        depth = min(self._runner.depths, self._shape.depth, sequence.depth, nodes - 1)
        if last is None or last.position != before or depth < 1:
            return None
        return Growth(sequence, self._shape, self.needs.price, context=before + 1, nodes=nodes, depth=depth)

    def _grow(self, context: DraftContext, growing: Sequence[Growth], logits: torch.Tensor) -> None:
        """Grow every level of the trees from logits [trees, depths, vocabulary]."""
        depths, rows = logits.shape[1], logits.flatten(0, 1)
        for depth in range(depths):
            live = [(tree, growth) for tree, growth in enumerate(growing) if growth.grows]
            if not live:
                return
            own = ([tree * depths + depth] * (len(growth.parents) - growth.computed) for tree, growth in live)
            grow_level(context, [growth for _, growth in live], rows, own)

    def pause(self, key: str) -> None:
        self.close(key)

    def close(self, key: str) -> None:
        self._last.pop(key, None)
        self._failures.forget(key)
