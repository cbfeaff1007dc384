"""Runs a head for a drafter: embeddings and LM head from the target, keys and values on pages.

Three kinds of heads are known by what they are asked: those that continue the target's hidden rows token by token
(:class:`FeatureRunner`), those that draft a block in one pass (:class:`BlockRunner`), and those that guess every depth
from one row (:class:`ParallelRunner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from outrider.heads.blocks import Attend, HeadParts, Slots
from outrider.heads.packed import pack
from outrider.kv.pool import PagedCache
from outrider.models.base import TargetModel
from outrider.models.pass_plan import AttentionCall, PassPlan
from outrider.tree import TreeBatch


class TokenIds:
    """Spreads logits of a reduced vocabulary over the target's; what the head cannot draft stays at −∞.

    Args:
        ids: int64 [reduced vocabulary]; None leaves logits as they are.
        vocabulary: the target's.
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


def ready(head: Any, target: TargetModel) -> Any:
    """A head where its target runs: its matrices on the CPU kernels there, in torch elsewhere."""
    return pack(head.to(target.device))


_COMPARED: Final = 4096
_ALIKE: Final = 1e-3
"""Rows that differ by less, relative to their length, are the same stored in another precision."""


def embedding_of(head: Any, target: TargetModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """What gives the rows of tokens: the head's own embedding, unless it is a copy of the target's."""
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
    """Attention of a head's blocks over pages, one layer's store after the other."""
    return lambda query, key, value, scaling: plan.attend(query, key, value, AttentionCall(scaling))


def _row_bytes(config: Any) -> int:
    """Bytes of keys and values of one position."""
    return 2 * 4 * int(config.blocks * config.block.key_heads * config.block.head_width)


class FeatureHead(Protocol):
    """What a network must give to continue hidden rows token by token, as the EAGLE family does."""

    config: Any
    """It says ``block``, a :class:`outrider.heads.blocks.BlockShape`, ``blocks``, how many there are, and
    ``hidden_layers``, the target layers read."""
    ids: torch.Tensor | None
    """int64 [vocabulary], the target's ids of the tokens it drafts, rising; None is all."""
    embed_tokens: Any
    """An embedding of its own; None is the target's."""

    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows of the layers it reads, [..., target width] each, as its steps take them: [..., width]."""
        ...

    def __call__(
        self, embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """One step for every row; see :meth:`outrider.heads.eagle.EagleHead.forward`."""
        ...

    def logits(self, features: torch.Tensor, unembed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Logits of the token after each step's answer, through ``unembed`` where it has no LM head of its own."""
        ...

    def parts(self) -> HeadParts | None:
        """What its step is made of, which the CPU kernels then run; None leaves it to torch."""
        ...


class BlockHead(Protocol):
    """What a network must give to draft a block in one pass; see :class:`outrider.heads.dspark.DSparkHead`."""

    config: Any
    """It says ``block``, ``blocks`` and ``hidden_layers`` as of a :class:`FeatureHead`, and ``slots``, ``drafts``,
    ``mask_id``, ``confidence`` and ``temperatures``."""
    ids: torch.Tensor | None
    embed_tokens: Any
    markov_head: Any
    """Token before, hidden row and state to what is added to a slot's logits, and the next state."""

    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """The context rows that every layer's keys and values come from."""
        ...

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
        """Read whole blocks."""
        ...

    def confidence(self, previous: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logit of the chance that a slot's draft is accepted if all before it are."""
        ...

    def parts(self) -> HeadParts | None: ...


class FeatureRunner:
    """A feature head that is ready to run.

    Args:
        head: the network, packed or not.
        target: whose rows it continues.
    """

    def __init__(self, head: FeatureHead, target: TargetModel) -> None:
        config = head.config
        self._head, self._target = ready(head, target), target
        self._embed = embedding_of(self._head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layers: tuple[int, ...] = config.hidden_layers
        self.context_length: int = config.block.positions
        self.device = target.device
        self.row_bytes = _row_bytes(config)

    @torch.inference_mode()
    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join rows of the target's layers, [n, target width] each, into features [n, width]."""
        fused: torch.Tensor = self._head.fuse([rows.float() for rows in features])
        return fused

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, features: torch.Tensor, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute every row of a batch.

        Args:
            batch: rows of every sequence, positions being those of the features.
            features: [rows, width].
            cache: the head's pages, already extended.

        Returns:
            The answers [rows, width], and the logits [wanted rows, ≥ vocabulary] in target token ids.
        """
        embeddings = self._embed(batch.tokens)
        attend = attend_by(PassPlan(batch, cache))
        answers = self._head(embeddings[None], features[None], batch.positions[None], attend)[0]
        if not len(batch.wanted):
            return answers, answers[:0]
        logits = self._head.logits(answers[batch.wanted], self._target.unembed)
        return answers, self._ids.spread(logits)


class DraftedBlock:
    """What one pass said of every sequence's block, and the correction that runs through it."""

    def __init__(self, head: BlockHead, slots: Slots, ids: TokenIds) -> None:
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
    def block(self, batch: TreeBatch, cache: PagedCache) -> DraftedBlock:
        """Read every sequence's block.

        Args:
            batch: anchors and masks, rows that see each other.
            cache: the head's pages, already extended; what is written for the block may be overwritten.
        """
        attends = [attend_by(PassPlan(batch, cache))] * self._head.config.blocks
        embeddings = self._embed(batch.tokens)
        slots = self._head(embeddings[None], batch.positions[None], attends, self._target.unembed)
        return DraftedBlock(self._head, Slots(slots.hidden[0], slots.logits[0]), self._ids)


class ParallelRunner:
    """Such a head, ready to run.

    Args:
        head: rows [n, width] to logits [n, depths, v], with ``ids`` [v]; packed or not.
        target: whose rows it reads.
    """

    def __init__(self, head: Any, target: TargetModel) -> None:
        self._head = ready(head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layer = target.layers
        """The rows after the final norm."""
        self.depths: int = head.config.heads

    @torch.inference_mode()
    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, width] → [n, depths, vocabulary] in target token ids; the next call overwrites it."""
        found = self._head(rows.float())
        return self._ids.spread(found.flatten(0, 1)).unflatten(0, found.shape[:2])
