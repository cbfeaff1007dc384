"""Runs a block head for a drafter: context rows go onto pages as they come, a block is read in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.heads.dspark import DSparkHead, Slots
from outrider.heads.runner import TokenIds, attend_by, embedding_of, ready
from outrider.kv.pool import PagedCache
from outrider.models.base import TargetModel
from outrider.models.pass_plan import PassPlan
from outrider.tree import TreeBatch


class DraftBlock:
    """What one pass said of every sequence's block, and the correction that runs through it."""

    def __init__(self, head: DSparkHead, slots: Slots, ids: TokenIds) -> None:
        self._head, self._slots, self._ids = head, slots, ids
        self._state: torch.Tensor | None = None

    @torch.inference_mode()
    def confidence(self, slot: int, previous: torch.Tensor) -> torch.Tensor:
        """Chance that each sequence's draft in a slot is accepted if all before it are; 1 where it cannot be told.

        Args:
            slot: counted from the first drafted.
            previous: int64 [sequences], the tokens before.
        """
        config = self._head.config
        if not config.confidence:
            return torch.ones(len(previous))
        temperature = config.temperatures[slot] if slot < len(config.temperatures) else 1.0
        return torch.sigmoid(self._head.confidence(previous, self._slots.hidden[:, slot]) / temperature)

    @torch.inference_mode()
    def logits(self, slot: int, previous: torch.Tensor) -> torch.Tensor:
        """[sequences, vocabulary] in target token ids; slots are asked in order, and the next call overwrites it."""
        added, self._state = self._head.markov_head(previous, self._slots.hidden[:, slot], self._state)
        return self._ids.spread(self._slots.logits[:, slot] + added)


class BlockRunner:
    """A block head that is ready to run.

    Args:
        head: the network, packed or not.
        target: whose rows it reads.
    """

    def __init__(self, head: DSparkHead, target: TargetModel) -> None:
        config = head.config
        self._head, self._target = ready(head, target), target
        self._embed = embedding_of(self._head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layers, self.slots, self.drafts = config.hidden_layers, config.slots, config.drafts
        self.mask_id, self.context_length, self.device = config.mask_id, config.block.positions, target.device
        self.row_bytes = 2 * 4 * config.blocks * config.block.key_heads * config.block.head_width

    @torch.inference_mode()
    def extend(self, batch: TreeBatch, features: Sequence[torch.Tensor], cache: PagedCache) -> None:
        """Write the keys and values of context rows.

        Args:
            batch: their places.
            features: rows of the target's layers, [rows, target width] each.
            cache: the head's pages, already extended.
        """
        fused = self._head.fuse([rows.float() for rows in features])
        plan = PassPlan(batch, cache)
        for key, value in self._head.context(fused[None], batch.positions[None]):
            plan.write(key, value)

    @torch.inference_mode()
    def block(self, batch: TreeBatch, cache: PagedCache) -> DraftBlock:
        """Read every sequence's block.

        Args:
            batch: anchors and masks, rows that see each other.
            cache: the head's pages, already extended; what is written for the block may be overwritten.
        """
        attends = [attend_by(PassPlan(batch, cache))] * self._head.config.blocks
        embeddings = self._embed(batch.tokens)
        slots = self._head(embeddings[None], batch.positions[None], attends, self._target.unembed)
        return DraftBlock(self._head, Slots(slots.hidden[0], slots.logits[0]), self._ids)
