"""Runs a head for a drafter: embeddings and LM head from the target, keys and values on pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

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


def attend_by(plan: PassPlan) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]:
    """Attention of a head's blocks over pages, one layer's store after the other."""
    return lambda query, key, value, scaling: plan.attend(query, key, value, AttentionCall(scaling))


class FeatureRunner:
    """An EAGLE head that is ready to run; see ``drafters/_feature_drafter.py``.

    Args:
        head: an EAGLE network, packed or not.
        target: whose rows it continues.
    """

    def __init__(self, head: Any, target: TargetModel) -> None:
        config = head.config
        self._head, self._target = ready(head, target), target
        self._embed = embedding_of(self._head, target)
        self._ids = TokenIds(head.ids, target.vocabulary)
        self.hidden_layers: tuple[int, ...] = config.hidden_layers
        self.context_length: int = config.block.positions
        self.device = target.device
        shape = config.block
        self.row_bytes = 2 * 4 * shape.key_heads * shape.head_width * getattr(config, "blocks", 1)

    @torch.inference_mode()
    def fuse(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        """See :class:`outrider.drafters._feature_drafter.FeatureModel`."""
        fused: torch.Tensor = self._head.fuse([rows.float() for rows in features])
        return fused

    @torch.inference_mode()
    def forward(self, batch: TreeBatch, features: torch.Tensor, cache: PagedCache) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`outrider.drafters._feature_drafter.FeatureModel`."""
        embeddings = self._embed(batch.tokens)
        attend = attend_by(PassPlan(batch, cache))
        answers = self._head(embeddings[None], features[None], batch.positions[None], attend)[0]
        if not len(batch.wanted):
            return answers, answers[:0]
        logits = self._head.logits(answers[batch.wanted], self._target.unembed)
        return answers, self._ids.spread(logits)
