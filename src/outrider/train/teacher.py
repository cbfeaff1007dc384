"""The target's frozen matrices as training needs them: its opinion of the next token, and its embeddings."""

from __future__ import annotations

from typing import Protocol

import torch


class Teacher(Protocol):
    """Gives the target's logits back from its captured final rows."""

    vocabulary: int
    """Tokens the target knows."""

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """The target's logits.

        Args:
            hidden: [..., width], rows after the final norm.
            ids: int64 [v], the tokens whose logits are wanted (a reduced draft vocabulary); None wants all.

        Returns:
            fp32 [..., v], without gradient.
        """
        ...

    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """The most probable token of all after each row [..., width], ties to the lowest id: int64 [...]."""
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The rows the target's first block reads of tokens [...]: fp32 [..., width], without gradient."""
        ...
