"""The teacher: the target's next-token distribution and embeddings, from its frozen matrices."""

from __future__ import annotations

from typing import Final

import torch

from outrider.models.base import TargetModel

_MOST_LOGITS: Final = 1 << 25
"""Most logits of the whole vocabulary that are computed at once."""
_FAR: Final = 1e4
"""A logit above every cap in use."""
_KEPT: Final = 2
"""Cached selections of rows: the reduced vocabulary, and one batch's additions to it."""


class Teacher:
    """The target's LM head and embeddings in fp32, which recompute its logits from captured final rows.

    Args:
        head: [vocabulary, width], the LM head.
        embedding: [vocabulary, width], the input embeddings; may be ``head`` itself.
        cap: soft cap of logits, ``cap·tanh(logit ÷ cap)``; 0 is none.
    """

    def __init__(self, head: torch.Tensor, embedding: torch.Tensor, cap: float = 0.0) -> None:
        self._head = head.float()
        self._embedding = self._head if embedding is head else embedding.float()
        self._cap = cap
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.vocabulary = len(head)
        """Size of the target's vocabulary."""

    @classmethod
    def of(cls, target: TargetModel) -> Teacher:
        """The matrices of a target."""
        every = torch.arange(target.vocabulary, device=target.device)
        head, embedding = target.unembed_rows(every), target.embed(every)
        tied = torch.equal(head, embedding)
        return cls(head, head if tied else embedding, _cap_of(target, head))

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """The target's logits, without gradient.

        Args:
            hidden: [..., width], rows after the final norm.
            ids: int64 [v], the tokens whose logits to compute; None is all.

        Returns:
            fp32 [..., v].
        """
        with torch.autocast(hidden.device.type, enabled=False):
            return self._capped(hidden.float() @ self._rows(ids).T)

    def read(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """The logits of guessed rows, with gradients to the rows; arguments as for :meth:`logits`."""
        return self._capped(hidden.float() @ self._rows(ids).T)

    def _rows(self, ids: torch.Tensor | None) -> torch.Tensor:
        """Rows of the LM head in the order of ``ids``, with a cache of the latest."""
        if ids is None:
            return self._head
        same = [place for place, (kept, _) in enumerate(self._kept) if kept is ids or torch.equal(kept, ids)]
        rows = self._kept.pop(same[0]) if same else (ids, self._head[ids])
        self._kept = [*self._kept, rows][-_KEPT:]
        return rows[1]

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        return self._cap * torch.tanh(logits / self._cap) if self._cap else logits

    @torch.no_grad()
    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """The most probable token after each row [..., width], the lowest id of equal ones: int64 [...]."""
        rows = hidden.float().reshape(-1, hidden.shape[-1])
        chunks = torch.split(rows, max(1, _MOST_LOGITS // self.vocabulary))
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.cat([(chunk @ self._head.T).argmax(-1) for chunk in chunks]).view(hidden.shape[:-1])

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The input embeddings of tokens [...]: fp32 [..., width], without gradient."""
        return self._embedding[tokens]

    def to(self, device: torch.device) -> Teacher:
        """The same on another device."""
        head = self._head.to(device)
        tied = self._embedding is self._head
        return Teacher(head, head if tied else self._embedding.to(device), self._cap)


def _cap_of(target: TargetModel, head: torch.Tensor) -> float:
    """The soft cap of a target's logits, found by asking for a logit far above it; 0 if there is none."""
    row = head[int(head.norm(dim=1).argmax())]
    token = int((head @ row).argmax())
    hidden = row * (_FAR / (head[token] @ row))
    cap = float(target.unembed(hidden[None])[0, token])
    return cap if cap < _FAR / 2 else 0.0
