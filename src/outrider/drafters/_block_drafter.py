"""Drafting a block in one pass, with the target's features among the keys: DSpark and DFlash.

The head's pages hold context rows only, one for each committed token whose hidden rows were seen:

    target   x0  x1  … x(t−1)  xt = anchor
    pages    c0  c1  … c(t−1) │ anchor and masks: computed in one pass, never kept

Whether a block's next token is verified is decided before that token is drawn, so every acceptance rule stays exact
(DSpark, §3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from outrider.drafters._growth import Failures
from outrider.drafters._trained import ChainOptions, built_head, head_pages
from outrider.drafters.base import (
    Committed,
    DraftContext,
    Drafter,
    DraftSequence,
    Frontier,
    Needs,
    Outcome,
    Proposal,
    Workbench,
)
from outrider.heads.native import block_runner
from outrider.heads.runner import BlockRunner, DraftedBlock
from outrider.kv.pool import PagedCache
from outrider.price import RowPrice
from outrider.tree import SequenceRows, TokenTree, TreeBatch, TreeBuilder, root_only


class BlockDrafter(Drafter):
    """Runs a block head on its own pages, for at most ``most`` drafted tokens that are worth their price."""

    def __init__(self, runner: BlockRunner, cache: PagedCache, price: RowPrice, most: int) -> None:
        self.needs = Needs(hidden_layers=runner.hidden_layers, price=price)
        self._runner, self._cache, self._most = runner, cache, most
        self._known: dict[str, int] = {}
        self._failures = Failures()

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        self.close(key)
        self._known[key] = self._cache.reuse(key, tokens, most)
        return self._known[key]

    def observe(self, outcome: Outcome) -> None:
        fresh = [kept for kept in outcome.committed if self._is_next(kept)]
        if not fresh:
            return
        chunks: list[SequenceRows] = []
        places: list[int] = []
        for kept in fresh:
            known, stop = self._known[kept.key], kept.start + len(kept.rows)
            chunks.append(SequenceRows(kept.key, known, tuple(kept.tokens[known:stop]), None))
            places += kept.rows[known - kept.start :]
        rows = torch.tensor(places, dtype=torch.int64)
        features = [outcome.output.hidden[layer][rows] for layer in self._runner.hidden_layers]
        self._runner.extend(TreeBatch.pack(chunks, self._runner.device), features, self._cache)
        for kept, chunk in zip(fresh, chunks, strict=True):
            self._known[kept.key] = chunk.context + chunk.rows
            self._cache.share(kept.key, kept.tokens, self._known[kept.key])

    def _is_next(self, kept: Committed) -> bool:
        """Whether a sequence's rows continue the known ones, and there is room for them."""
        known = self._known.get(kept.key)
        stop = kept.start + len(kept.rows)
        if known is None or stop <= known:
            return False
        if kept.start > known or stop > self._runner.context_length or not self._cache.extend(kept.key, stop):
            self._drop(kept.key)  # rows are missing, so drafting cannot continue
            return False
        return True

    def propose(self, context: DraftContext) -> list[TokenTree]:
        ready = [index for index, sequence in enumerate(context.sequences) if self._is_ready(sequence)]
        trees = [root_only(sequence.tokens[-1]) for sequence in context.sequences]
        if ready:
            sequences = [context.sequences[index] for index in ready]
            rows = [self._rows(sequence) for sequence in sequences]
            block = self._runner.block(TreeBatch.pack(rows, self._runner.device), self._cache)
            for index, builder in zip(ready, self._draw(context, ready, block), strict=True):
                trees[index] = builder.build()
        return trees

    def _is_ready(self, sequence: DraftSequence) -> bool:
        self._failures.check(sequence.key)
        known, anchor = self._known.get(sequence.key), len(sequence.tokens) - 1
        last = anchor + self._runner.slots
        return known == anchor and last <= self._runner.context_length and self._cache.extend(sequence.key, last)

    def _rows(self, sequence: DraftSequence) -> SequenceRows:
        masks = (self._runner.mask_id,) * (self._runner.slots - 1)
        return SequenceRows(sequence.key, len(sequence.tokens) - 1, (sequence.tokens[-1], *masks), None, together=True)

    def _draw(self, context: DraftContext, ready: Sequence[int], block: DraftedBlock) -> list[TreeBuilder]:
        """Choose the blocks' tokens slot by slot, until the next one is not worth its row."""
        builders = [context.sequences[index].builder() for index in ready]
        live = list(range(len(ready)))
        for slot in range(self._runner.drafts):
            try:
                previous = torch.tensor([builder.tokens[-1] for builder in builders], device=self._runner.device)
                chances = block.confidence(slot, previous).tolist()
                live = [p for p in live if self._goes_on(context.sequences[ready[p]], builders[p], chances[p])]
                if not live:
                    break
                logits = block.logits(slot, previous)
            except Exception as error:  # noqa: BLE001 - see Failures
                for place in live:
                    self._failures.note(context.sequences[ready[place]].key, error)
                break
            frontiers = [_last_node(context.sequences[ready[p]].key, builders[p], p) for p in live]
            picked = zip(live, frontiers, context.pick(logits, frontiers), strict=True)
            live = [p for p, one, drawn in picked if self._add(one, builders[p], drawn, chances[p])]
            if not live:
                break
        return builders

    def _goes_on(self, sequence: DraftSequence, builder: TreeBuilder, chance: float) -> bool:
        """Whether another draft fits the budget and is worth its row."""
        if len(builder) > min(self._most, sequence.nodes - 1, sequence.depth):
            return False
        price = sequence.price or self.needs.price
        return price.worth(builder.survival, chance * builder.survival[-1])

    def _add(
        self, frontier: Frontier, builder: TreeBuilder, picked: list[list[Proposal]] | Exception, chance: float
    ) -> bool:
        """Add one sequence's next token; False if there is none."""
        if isinstance(picked, Exception):
            self._failures.note(frontier.key, picked)
            return False
        for proposal in picked[0]:
            builder.add(frontier.nodes[0], proposal.token, survival=chance, q=proposal.q, removed=proposal.removed)
        return bool(picked[0])

    def pause(self, key: str) -> None:
        self.close(key)

    def close(self, key: str) -> None:
        self._failures.forget(key)
        self._drop(key)

    def _drop(self, key: str) -> None:
        """Stop drafting for a request; its error stays and is raised later."""
        self._known.pop(key, None)
        self._cache.release(key)


def _last_node(key: str, builder: TreeBuilder, row: int) -> Frontier:
    return Frontier(key, [row], [builder.paths[-1]], [len(builder) - 1], width=1)


_ROUND_COST: Final = 1.2
"""Cost of an anchor and a drafted block, in one-row passes: a block costs about a fifth of a pass."""


def block_drafter(workbench: Workbench, options: ChainOptions, row_cost: float) -> BlockDrafter:
    """Make a drafter with a block head; see :func:`outrider.drafters._trained.built_head` for errors.

    ``row_cost`` is the cost of one more verified row, in one-row passes; 0 drafts whole blocks.
    """
    runner = block_runner(built_head(workbench, options), workbench.target)
    price = RowPrice(row_cost=row_cost, round_cost=_ROUND_COST)
    pages = head_pages(workbench, options, runner.row_bytes)
    return BlockDrafter(runner, pages, price, options.num_draft_tokens or runner.drafts)
