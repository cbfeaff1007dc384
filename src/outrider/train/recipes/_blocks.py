"""The training of block drafters: blocks of slots at chosen starts of a text, and their attention mask.

A block's rows see each other and the context strictly before their anchor, because the anchor's features are unknown
before the next pass; they do not see other blocks (DSpark, arXiv 2607.05147, §3.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.heads.blocks import Attend, Slots
from outrider.heads.dspark import DSparkHead
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes.base import starts


@dataclass(frozen=True, eq=False)
class Drafted:
    """Drafted blocks of a batch, equally many per text."""

    rows: torch.Tensor
    """int64 [B, A]: the start of each block; its anchor is the next token."""
    real: torch.Tensor
    """bool [B, A]: False for blocks that are padding."""
    slots: Slots
    """[B, A, drafts, …]."""
    previous: torch.Tensor
    """int64 [B, A, drafts]: the text's own token before each slot's."""

    @property
    def texts(self) -> torch.Tensor:
        """The number of each block's text: int64 [B, A]."""
        return torch.arange(len(self.rows), device=self.rows.device).unsqueeze(1).expand_as(self.rows)


def choose_starts(batch: Batch, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw up to ``most`` starts of each text with the batch's generator: int64 and bool [B, A]."""
    counted = starts(batch, 1)[0]
    lots = torch.rand(counted.shape, generator=batch.generator()).to(counted.device).masked_fill(~counted, -1.0)
    best = lots.topk(min(most, counted.shape[1]), dim=1)
    return best.indices, best.values >= 0


def draft_blocks(head: DSparkHead, batch: Batch, teacher: Teacher, rows: torch.Tensor, real: torch.Tensor) -> Drafted:
    """Run a head on blocks at chosen starts."""
    config, device = head.config, batch.tokens.device
    reach = torch.arange(config.slots, device=device)
    places = (rows + 1).unsqueeze(-1) + reach  # [B, A, slots]: positions of anchors and masks
    anchors = torch.gather(batch.tokens, 1, (rows + 1).clamp(max=batch.tokens.shape[1] - 1))
    tokens = torch.where(reach > 0, config.mask_id, anchors.unsqueeze(-1))
    context = head.context(
        head.fuse([batch.features[layer] for layer in config.hidden_layers]),
        torch.arange(batch.tokens.shape[1], device=device).expand_as(batch.tokens),
    )
    hidden = _hidden(rows, real, batch.tokens.shape[1], config.slots)
    attends = [_attend(keys, values, hidden) for keys, values in context]
    slots = head(teacher.embed(tokens.flatten(1)), places.flatten(1), attends, teacher.logits)
    before = (rows + 1).unsqueeze(-1) + torch.arange(config.drafts, device=device)
    texts = torch.arange(len(rows), device=device).view(-1, 1, 1)
    return Drafted(rows, real, slots, batch.tokens[texts, before.clamp(max=batch.tokens.shape[1] - 1)])


def _hidden(rows: torch.Tensor, real: torch.Tensor, length: int, slots: int) -> torch.Tensor:
    """Bool [B, 1, A · slots, T + A · slots]: the positions that a block's rows must not see."""
    later = torch.arange(length, device=rows.device) > rows.unsqueeze(-1)  # [B, A, T]
    blocks = rows.shape[1]
    others = ~torch.eye(blocks, dtype=torch.bool, device=rows.device).repeat_interleave(slots, 1)
    seen = torch.cat((later, others.expand(len(rows), -1, -1)), -1)
    return seen.repeat_interleave(slots, 1).unsqueeze(1)


def _attend(context_keys: torch.Tensor, context_values: torch.Tensor, hidden: torch.Tensor) -> Attend:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query,
            torch.cat((context_keys, key), 2),
            torch.cat((context_values, value), 2),
            attn_mask=~hidden,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed.transpose(1, 2)

    return attend


def corrected(head: DSparkHead, drafted: Drafted) -> torch.Tensor:
    """Logits of every slot, corrected by the text's own token before it: [B, A, drafts, vocabulary]."""
    state, logits = None, []
    for slot in range(head.config.drafts):
        hidden = drafted.slots.hidden[:, :, slot]
        added, state = head.markov_head(drafted.previous[:, :, slot], hidden, state)
        logits.append(drafted.slots.logits[:, :, slot] + added)
    return torch.stack(logits, 2)
