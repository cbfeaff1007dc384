"""The teacher: the target's own distribution of the next token, and its embeddings, from its frozen matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from outrider.models.base import TargetModel

_MOST_LOGITS: Final = 1 << 25
"""Most logits of the whole vocabulary that are made at once."""


_FAR: Final = 1e4
"""A logit no cap in use lets through."""
_KEPT: Final = 2
"""Choices of rows that are kept: a training's reduced vocabulary, and what one batch looks at beside it."""


class Teacher:
    """The target's LM head and embeddings in fp32, which give its logits back from captured final rows."""

    def __init__(self, head: torch.Tensor, embedding: torch.Tensor, cap: float = 0.0) -> None:
        """Keep the matrices.

        Args:
            head: [vocabulary, width], the LM head.
            embedding: [vocabulary, width], what the first block reads of each token; may be ``head`` itself.
            cap: logits are bent to stay below this, ``cap·tanh(logit ÷ cap)``; 0 leaves them.
        """
        self._head = head.float()
        self._embedding = self._head if embedding is head else embedding.float()
        self._cap = cap
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.vocabulary = len(head)
        """Tokens the target knows."""

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
            ids: int64 [v], the tokens whose logits are wanted (a reduced draft vocabulary); None wants all.

        Returns:
            fp32 [..., v].
        """
        with torch.autocast(hidden.device.type, enabled=False):
            return self._capped(hidden.float() @ self._rows(ids).T)

    def read(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """The logits after guessed rows; gradients flow to the rows.  Arguments are those of :meth:`logits`."""
        return self._capped(hidden.float() @ self._rows(ids).T)

    def _rows(self, ids: torch.Tensor | None) -> torch.Tensor:
        """Rows of the LM head in the order of ``ids``; those asked for last are kept, the latest at the end."""
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
        """The most probable token of all after each row [..., width], ties to the lowest id: int64 [...]."""
        rows = hidden.float().reshape(-1, hidden.shape[-1])
        chunks = torch.split(rows, max(1, _MOST_LOGITS // self.vocabulary))
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.cat([(chunk @ self._head.T).argmax(-1) for chunk in chunks]).view(hidden.shape[:-1])

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The rows the target's first block reads of tokens [...]: fp32 [..., width], without gradient."""
        return self._embedding[tokens]

    def to(self, device: torch.device) -> Teacher:
        """The same on another device."""
        head = self._head.to(device)
        tied = self._embedding is self._head
        return Teacher(head, head if tied else self._embedding.to(device), self._cap)


def _cap_of(target: TargetModel, head: torch.Tensor) -> float:
    """The value a target bends its logits to stay below, found by asking for one far beyond; 0 if it bends none."""
    row = head[int(head.norm(dim=1).argmax())]
    token = int((head @ row).argmax())
    hidden = row * (_FAR / (head[token] @ row))
    cap = float(target.unembed(hidden[None])[0, token])
    return cap if cap < _FAR / 2 else 0.0
