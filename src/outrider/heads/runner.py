"""Runs a head for a drafter: embeddings and LM head come from the target, keys and values lie in pages.

There are three kinds of heads: some continue the target's hidden rows token by token (:class:`FeatureRunner`), some
draft a block in one pass (:class:`BlockRunner`), and some predict every depth from one row (:class:`ParallelRunner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from outrider.heads.blocks import Attend, HeadParts, Slots
from outrider.heads.packed_linear import pack
from outrider.kv.pool import PagedCache
from outrider.models.base import TargetModel
from outrider.models.pass_plan import AttentionCall, PassPlan
from outrider.tree import TreeBatch


class TokenIds:
    """Spreads logits of a reduced vocabulary over the target's; tokens that the head cannot draft get −∞.

    ``ids`` are its target ids, int64 [reduced vocabulary]; None leaves logits unchanged.
    """

    def __init__(self, ids: torch.Tensor | None, vocabulary: int) -> None:
        self._ids, self._vocabulary = ids, vocabulary
        self._wide = torch.empty(0, vocabulary)

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """[rows, reduced vocabulary] → [rows, vocabulary]; the next call overwrites it."""
        if self._ids is None:
            return logits
        if len(self._wide) < len(logits):
            shape = (len(logits), self._vocabulary)
            self._wide = torch.full(shape, -torch.inf, dtype=logits.dtype, device=logits.device)
        wide = self._wide[: len(logits)]
        wide[:, self._ids] = logits
        return wide


_COMPARED: Final = 4096
_ALIKE: Final = 1e-3
"""Rows with a smaller relative difference are the same, stored in another precision."""


def embedding_of(head: Any, target: TargetModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """Choose the embedding for a head: its own, unless that is missing or a copy of the target's."""
    own = head.embed_tokens
    if own is not None and _is_copy(own.weight, target):
        head.embed_tokens = own = None
    return target.embed if own is None else own


def _is_copy(rows: torch.Tensor, target: TargetModel) -> bool:
    if rows.shape != (target.vocabulary, target.width):
        return False
    for part in torch.arange(len(rows), device=target.device).split(_COMPARED):
        theirs = target.embed(part)
        if float((rows[part] - theirs).norm()) > _ALIKE * float(theirs.norm()):
            return False
    return True


def attend_by(plan: PassPlan) -> Attend:
    """Make the attention of a head's blocks over pages; each call uses the next layer's store."""
    return lambda query, key, value, scaling: plan.attend(query, key, value, AttentionCall(scaling))


def ready(head: Any, target: TargetModel) -> Any:
    """Move a head to its target's device; on the CPU, pack its matrices for the kernels."""
    return pack(head.to(target.device))


def _row_bytes(config: Any) -> int:
    """Bytes of keys and values of one position."""
    return 2 * 4 * int(config.blocks * config.block.key_heads * config.block.head_width)


class Head(Protocol):
    """What every network that keeps keys and values in pages has."""

    config: Any
    """Has ``block``, a :class:`outrider.heads.blocks.BlockShape`, ``blocks``, their number, and ``hidden_layers``, the
    target layers it reads."""
    ids: torch.Tensor | None
    """int64 [vocabulary], ascending target ids of the draft vocabulary; None is all."""
    embed_tokens: Any
    """Its own embedding; None is the target's."""

    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse rows of the layers it reads: [..., target width] each → [..., width]."""
        ...

    def parts(self) -> HeadParts | None:
        """Describe its computation, so the CPU kernels can run it; None runs it on torch."""
        ...


class FeatureHead(Head, Protocol):
    """A network that continues hidden rows token by token, as in the EAGLE family."""

    def __call__(
        self, embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Compute one step for every row; see :meth:`outrider.heads.eagle.EagleHead.forward`."""
        ...

    def logits(self, features: torch.Tensor, unembed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Logits of the token after each step's answer; ``unembed`` serves a head without an LM head."""
        ...


class BlockHead(Head, Protocol):
    """A network that drafts a block in one pass; see :class:`outrider.heads.dspark.DSparkHead`.

    Its ``config`` also has ``slots``, ``drafts``, ``mask_id``, ``confidence`` and ``temperatures``.
    """

    markov_head: Any
    """Maps previous token, hidden row and state to the correction of a slot's logits and the next state."""

    def context(self, fused: torch.Tensor, positions: torch.Tensor) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's keys and values of context rows."""
        ...

    def __call__(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        attends: Sequence[Attend],
        unembed: Callable[[torch.Tensor], torch.Tensor],
    ) -> Slots:
        """Compute whole blocks."""
        ...

    def confidence(self, previous: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logit of a slot's chance of acceptance if all slots before it are accepted."""
        ...


class FeatureRunner:
    """Runs a feature head, packed or not, on its target's device."""

    def __init__(self, head: FeatureHead, target: TargetModel) -> None:
        self._head, self._target = ready(head, target), target
        self._embed = embedding_of(self._head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layers, self.context_length = head.config.hidden_layers, head.config.block.positions
        self.device, self.row_bytes = target.device, _row_bytes(head.config)

    @torch.inference_mode()
    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Fuse rows of the target's layers: [n, target width] each → [n, width]."""
        fused: torch.Tensor = self._head.fuse([rows.float() for rows in features])
        return fused

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, features: torch.Tensor, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute every row of a batch, at the positions of its features, [rows, width].

        The head's pages must be extended.

        Returns:
            Answers [rows, width], and logits [wanted rows, ≥ vocabulary] in target token ids.
        """
        embeddings = self._embed(batch.tokens)
        attend = attend_by(PassPlan(batch, cache))
        answers = self._head(embeddings[None], features[None], batch.positions[None], attend)[0]
        if not len(batch.wanted):
            return answers, answers[:0]
        logits = self._head.logits(answers[batch.wanted], self._target.unembed)
        return answers, self._ids.spread(logits)


class DraftedBlock:
    """Output of one pass for every sequence's block, and the state of the correction."""

    def __init__(self, head: BlockHead, slots: Slots, ids: TokenIds) -> None:
        self._head, self._slots, self._ids = head, slots, ids
        self._state: torch.Tensor | None = None

    @torch.inference_mode()
    def confidence(self, slot: int, previous: torch.Tensor) -> torch.Tensor:
        """Estimate each sequence's chance of acceptance in a slot if all slots before it are accepted; 1 if unknown.

        ``previous`` are the tokens of the previous slot, int64 [sequences].
        """
        config = self._head.config
        if not config.confidence:
            return torch.ones(len(previous))
        temperature = config.temperatures[slot] if slot < len(config.temperatures) else 1.0
        return torch.sigmoid(self._head.confidence(previous, self._slots.hidden[:, slot]) / temperature)

    @torch.inference_mode()
    def logits(self, slot: int, previous: torch.Tensor) -> torch.Tensor:
        """Logits of a slot, [sequences, vocabulary], in target ids.  Ask in order; the next call overwrites them."""
        added, self._state = self._head.markov_head(previous, self._slots.hidden[:, slot], self._state)
        return self._ids.spread(self._slots.logits[:, slot] + added)


class BlockRunner:
    """Runs a block head, packed or not, on its target's device."""

    def __init__(self, head: BlockHead, target: TargetModel) -> None:
        config = head.config
        self._head, self._target = ready(head, target), target
        self._embed = embedding_of(self._head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layers, self.slots, self.drafts = config.hidden_layers, config.slots, config.drafts
        self.mask_id, self.context_length, self.device = config.mask_id, config.block.positions, target.device
        self.row_bytes = _row_bytes(config)

    @torch.inference_mode()
    def extend(self, batch: TreeBatch, features: Sequence[torch.Tensor], cache: PagedCache) -> None:
        """Write keys and values of context rows, from rows of the target's layers, into extended pages."""
        fused = self._head.fuse([rows.float() for rows in features])
        plan = PassPlan(batch, cache)
        for keys, values in self._head.context(fused[None], batch.positions[None]):
            plan.write(keys, values)

    @torch.inference_mode()
    def block(self, batch: TreeBatch, cache: PagedCache) -> DraftedBlock:
        """Compute every sequence's block in extended pages; its anchors and masks see each other."""
        attends = [attend_by(PassPlan(batch, cache))] * self._head.config.blocks
        embeddings = self._embed(batch.tokens)
        slots = self._head(embeddings[None], batch.positions[None], attends, self._target.unembed)
        return DraftedBlock(self._head, Slots(slots.hidden[0], slots.logits[0]), self._ids)


class ParallelRunner:
    """Runs a head that maps one row to logits of every depth, [n, width] → [n, depths, v], with ``ids`` [v]."""

    def __init__(self, head: Any, target: TargetModel) -> None:
        self._head = ready(head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layer = target.layers
        """The rows after the final norm."""
        self.depths: int = head.config.heads

    @torch.inference_mode()
    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, width] → [n, depths, vocabulary] in target token ids; the next call overwrites them."""
        logits = self._head(rows.float())
        return self._ids.spread(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])
