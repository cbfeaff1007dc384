"""Drafting with a network that continues the target's hidden rows token by token: the EAGLE family.

A head's row joins the target's feature at position i with the token at i + 1 (Li et al. 2024, §3).  So the head's text
begins with the second token:

    target   x0  x1  x2 … x(t−1)  xt = anchor
    head         x1  x2 … x(t−1)  xt │ nodes of the growing tree
    features     g0  g1 …          g(t−1) │ the head's own answers

Rows of committed tokens use the target's features, never guessed ones.  So accepted nodes are computed again, in the
pass that starts the next tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import torch

from outrider.drafters._growth import CHUNK, JOINED, Failures, Growth, TreeShape, grow_level, node_rows
from outrider.drafters._trained import TreeOptions, built_head, head_pages
from outrider.drafters.base import Committed, DraftContext, Drafter, DraftSequence, Needs, Outcome, Workbench
from outrider.heads.native import feature_runner
from outrider.heads.runner import FeatureRunner
from outrider.kv.pool import PagedCache
from outrider.tree import SequenceRows, TokenTree, TreeBatch


class _Shifted(Sequence[int]):
    """The head's text for the prefix index: the tokens from the second on; its first item holds the first two."""

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
    """One request's tokens, which grow in place, and its features."""

    tokens: Sequence[int]
    computed: int
    """Number of rows in the head's pages."""
    features: list[torch.Tensor] = field(default_factory=list)
    """Features of the rows from ``computed`` on."""

    @property
    def known(self) -> int:
        """Number of positions with features."""
        return self.computed + sum(map(len, self.features))

    def take(self, count: int) -> torch.Tensor:
        """Remove and return the oldest features."""
        joined = torch.cat(self.features)
        self.features = [joined[count:]] if count < len(joined) else []
        return joined[:count]


class FeatureDrafter(Drafter):
    """Runs a head on its own pages; adds the head's layers to the method's needs."""

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
        growing = [self._begin(sequence) for sequence in context.sequences]
        active = [growth for growth in growing if growth is not None and growth.grows]
        answers = self._start(context, active)
        while active := [growth for growth in active if growth.grows]:
            answers = self._go_on(context, active, answers)
        return self._failures.finish(context, growing)

    def observe(self, outcome: Outcome) -> None:
        for kept in outcome.committed:
            state = self._states.get(kept.key)
            if state is None:
                continue
            if kept.start > state.known:
                self._drop(kept.key)  # rows are missing, so drafting cannot continue
                continue
            self._note(state, kept, outcome)
            if state.known - state.computed > CHUNK or self._fills_a_page(state):
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
        """Stop drafting for a request; its error stays and is raised later."""
        state = self._states.pop(key, None)
        try:
            if state is not None and key not in self._failures and self._fills_a_page(state):
                # For later requests that begin with the same text.
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

    def _begin(self, sequence: DraftSequence) -> Growth | None:
        """Start a tree; None if the request is unknown, past the head's context, or out of pages."""
        self._failures.check(sequence.key)
        nodes = min(self._most_nodes, sequence.nodes)
        depth = min(self._depth, sequence.depth, nodes - 1)
        state, context = self._states.get(sequence.key), len(sequence.tokens) - 2
        if state is None or context < 0 or state.known != context + 1:
            return None
        if context + 1 + depth > self._model.context_length:
            self._drop(sequence.key)
            return None
        self._compute(sequence.key, state, context + 1 - JOINED)
        if sequence.key not in self._states or not self._cache.extend(
            sequence.key, context + 1 + self._most_rows(depth)
        ):
            return None
        growth = Growth(sequence, self._shape, self.needs.price, context=context, nodes=nodes, depth=depth)
        growth.pending = tuple(sequence.tokens[1 + state.computed : 1 + context])
        return growth

    def _most_rows(self, depth: int) -> int:
        """Maximum rows of nodes that one tree computes."""
        beam = self._shape.beam
        return self._most_nodes if beam is None else max(self._most_nodes, beam**2 * depth)

    def _compute(self, key: str, state: _State, rows: int) -> None:
        """Compute the first ``rows`` committed rows; without pages for them, forget the request."""
        if rows <= state.computed:
            return
        if not self._cache.extend(key, rows):
            self._states.pop(key, None)
            self._cache.release(key)
            return
        while state.computed < rows:
            tokens = tuple(state.tokens[1 + state.computed : 1 + min(rows, state.computed + CHUNK)])
            chunk = TreeBatch.pack([SequenceRows(key, state.computed, tokens, None)], self._model.device)
            self._model.forward(chunk, state.take(len(tokens)), self._cache)
            self._advance(key, state, state.computed + len(tokens))

    def _advance(self, key: str, state: _State, computed: int) -> None:
        state.computed = computed
        self._cache.share(key, _Shifted(state.tokens), computed)

    def _start(self, context: DraftContext, active: Sequence[Growth]) -> dict[str, torch.Tensor]:
        """Compute pending rows and anchors, and grow the first level."""
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
        """Grow one more level from the answers of the last level."""
        features = []
        for growth in active:
            known, first = answers[growth.sequence.key], growth.first
            parents = growth.parents[growth.computed :]
            features.append(known[[parent - first for parent in parents]])
        return self._level(context, active, features)

    def _level(
        self, context: DraftContext, active: Sequence[Growth], features: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Draft one level of every tree, and return the head's answers at the computed nodes by request."""
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
    """Make a drafter with a head of the EAGLE family; see :func:`outrider.drafters._trained.built_head` for errors."""
    runner = feature_runner(built_head(workbench, options), workbench.target)
    return FeatureDrafter(
        runner,
        head_pages(workbench, options, runner.row_bytes),
        shape,
        depth=options.num_steps,
        most_nodes=options.most_nodes,
        needs=options.needs,
    )
