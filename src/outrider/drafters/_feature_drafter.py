"""Drafting with a network that continues the target's hidden rows token by token: the EAGLE family.

A head's row joins the target's feature at position i with the token at i + 1 (Li et al. 2024, §3), so for the head a
text is its tokens from the second on:

    target   x0  x1  x2 … x(t−1)  xt = anchor
    head         x1  x2 … x(t−1)  xt │ nodes of the growing tree
    features     g0  g1 …          g(t−1) │ the head's own answers

Rows of committed tokens are computed with the target's features, never with guessed ones: after a round the accepted
nodes are computed again, in the pass that starts the next tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import torch

from outrider.drafters._growth import Failures, Growth, TreeShape, grow_level, node_rows
from outrider.drafters._trained import TreeOptions, built_head, head_pages
from outrider.drafters.base import Committed, DraftContext, DraftSequence, Needs, Outcome, Workbench
from outrider.heads.native import feature_runner
from outrider.heads.runner import FeatureRunner
from outrider.kv.pool import PagedCache
from outrider.tree import SequenceRows, TokenTree, TreeBatch, root_only

_CHUNK = 512
_JOINED = 32
"""So many rows that the cache lags behind go into the first drafting pass; more of them get passes of their own."""


class _Shifted(Sequence[int]):
    """Names the head's rows to the prefix index: the second token and so on, with the first joined to the second."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return max(0, len(self._tokens) - 1)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._tokens[index + 1] if index else self._tokens[0] << 32 | self._tokens[1]


@dataclass(eq=False)
class _State:
    """What is known of one request.

    ``features`` are those of the head's rows from ``computed`` on; the engine's tokens grow in place.
    """

    tokens: Sequence[int]
    computed: int
    features: list[torch.Tensor] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Positions whose features were seen."""
        return self.computed + sum(map(len, self.features))

    def take(self, count: int) -> torch.Tensor:
        """Hand out the next features, oldest first."""
        joined = torch.cat(self.features)
        self.features = [joined[count:]] if count < len(joined) else []
        return joined[:count]


class FeatureDrafter:
    """Runs a head against its own pages.

    Args:
        model: the head.
        cache: its pages.
        shape: which nodes have how many children.
        depth: most levels.
        most_nodes: most nodes of a tree, anchor included.
        needs: of the method; the layers are the head's.
    """

    def __init__(
        self, model: FeatureRunner, cache: PagedCache, shape: TreeShape, *, depth: int, most_nodes: int, needs: Needs
    ) -> None:
        self.needs = replace(needs, hidden_layers=model.hidden_layers)
        self._model, self._cache, self._shape = model, cache, shape
        self._depth, self._most_nodes = depth, most_nodes
        self._states: dict[str, _State] = {}
        self._failures = Failures()

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        self.close(key)
        known = self._cache.reuse(key, _Shifted(tokens), most)
        self._states[key] = _State(tokens, known)
        return known

    def propose(self, context: DraftContext) -> list[TokenTree]:
        growing = [self._begin(index, sequence) for index, sequence in enumerate(context.sequences)]
        active = [growth for growth in growing if growth is not None and growth.room]
        answers = self._start(context, active)
        while active := [growth for growth in active if growth.frontier and growth.room]:
            answers = self._go_on(context, active, answers)
        self._failures.collect(growing)
        return [
            growth.finish() if growth else root_only(sequence.tokens[-1])
            for growth, sequence in zip(growing, context.sequences, strict=True)
        ]

    def observe(self, outcome: Outcome) -> None:
        for kept in outcome.committed:
            state = self._states.get(kept.key)
            if state is None:
                continue
            if kept.start > state.known:
                self._drop(kept.key)  # rows went by unseen, so that nothing can follow
                continue
            self._note(state, kept, outcome)
            if state.known - state.computed > _CHUNK or self._fills_a_page(state):
                # The anchor's row waits for the pass that drafts from it.
                self._compute(kept.key, state, min(state.known, len(state.tokens) - 2))

    def pause(self, key: str) -> None:
        self.close(key)

    def close(self, key: str) -> None:
        try:
            self._drop(key)
        finally:
            self._failures.forget(key)

    def _drop(self, key: str) -> None:
        """Draft no more for a request; what it met stays, to be told."""
        state = self._states.pop(key, None)
        try:
            if state is not None and key not in self._failures and self._fills_a_page(state):
                # For the next request whose text begins like this one.
                self._compute(key, state, min(state.known, len(state.tokens) - 1))
        finally:
            self._cache.release(key)

    def _fills_a_page(self, state: _State) -> bool:
        size, last = self._cache.page_size, min(state.known, len(state.tokens) - 1)
        return self._cache.shares and last // size > state.computed // size

    def _note(self, state: _State, kept: Committed, outcome: Outcome) -> None:
        rows = torch.tensor(kept.rows[state.known - kept.start :], dtype=torch.int64)
        if len(rows):
            layers = outcome.output.hidden
            state.features.append(self._model.fuse([layers[layer][rows] for layer in self._model.hidden_layers]))

    def _begin(self, index: int, sequence: DraftSequence) -> Growth | None:
        """Start a tree, or None where the request is past the head's context, out of pages or not known."""
        self._failures.check(sequence.key)
        nodes = min(self._most_nodes, sequence.nodes)
        depth = min(self._depth, sequence.depth, nodes - 1)
        state, context = self._states.get(sequence.key), len(sequence.tokens) - 2
        if state is None or context < 0 or state.known != context + 1:
            return None
        if context + 1 + depth > self._model.context_length:
            self._drop(sequence.key)
            return None
        self._compute(sequence.key, state, context + 1 - _JOINED)
        if sequence.key not in self._states or not self._cache.extend(
            sequence.key, context + 1 + self._most_rows(depth)
        ):
            return None
        growth = Growth(index, sequence, self._shape, self.needs.price, context=context, nodes=nodes, depth=depth)
        growth.pending = tuple(sequence.tokens[1 + state.computed : 1 + context])
        return growth

    def _most_rows(self, depth: int) -> int:
        """Rows of nodes that a tree may compute."""
        beam = self._shape.beam
        return self._most_nodes if beam is None else max(self._most_nodes, beam**2 * depth)

    def _compute(self, key: str, state: _State, rows: int) -> None:
        """Compute committed rows up to this one; without pages for them the request is forgotten."""
        if rows <= state.computed:
            return
        if not self._cache.extend(key, rows):
            self._states.pop(key, None)
            self._cache.release(key)
            return
        while state.computed < rows:
            tokens = tuple(state.tokens[1 + state.computed : 1 + min(rows, state.computed + _CHUNK)])
            chunk = TreeBatch.pack([SequenceRows(key, state.computed, tokens, None)], self._model.device)
            self._model.forward(chunk, state.take(len(tokens)), self._cache)
            self._advance(key, state, state.computed + len(tokens))

    def _advance(self, key: str, state: _State, computed: int) -> None:
        state.computed = computed
        self._cache.share(key, _Shifted(state.tokens), computed)

    def _start(self, context: DraftContext, active: Sequence[Growth]) -> dict[str, torch.Tensor]:
        """Compute what is pending and the anchors, and grow the first level."""
        features = [self._states[growth.sequence.key].take(len(growth.pending) + 1) for growth in active]
        answers = self._level(context, active, features)
        for growth in active:
            state = self._states.get(growth.sequence.key)
            if state is not None and growth.computed:
                self._advance(growth.sequence.key, state, growth.context + 1)
        return answers

    def _go_on(
        self, context: DraftContext, active: Sequence[Growth], answers: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Grow one more level from the answers of the last one."""
        features = []
        for growth in active:
            known, first = answers[growth.sequence.key], growth.first
            parents = growth.parents[growth.computed :]
            features.append(known[[parent - first for parent in parents]])
        return self._level(context, active, features)

    def _level(
        self, context: DraftContext, active: Sequence[Growth], features: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Draft one level of every tree.

        Returns:
            The head's answers at the nodes it computed, by request.
        """
        if not active:
            return {}
        rows = [growth.rows() for growth in active]
        try:
            answers, logits = self._model.forward(
                TreeBatch.pack(rows, self._model.device), torch.cat(features), self._cache
            )
        except Exception as error:  # noqa: BLE001 - see Failures
            for growth in active:
                growth.fail(error)
            return {}
        nodes = node_rows(rows)
        grow_level(context, active, logits, nodes)
        own = torch.split(answers, [one.rows for one in rows])
        return {
            growth.sequence.key: part[len(part) - len(drafted) :]
            for growth, part, drafted in zip(active, own, nodes, strict=True)
        }


def feature_drafter(workbench: Workbench, options: TreeOptions, shape: TreeShape) -> FeatureDrafter:
    """A drafter with a head of the family; see :func:`outrider.drafters._trained.built_head` for errors."""
    runner = feature_runner(built_head(workbench, options), workbench.target)
    return FeatureDrafter(
        runner,
        head_pages(workbench, options, runner.row_bytes),
        shape,
        depth=options.num_steps,
        most_nodes=options.most_nodes,
        needs=options.needs,
    )
