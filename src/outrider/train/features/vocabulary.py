"""The reduced vocabulary that a head drafts from: the most frequent tokens of answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from outrider.errors import ConfigError


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """Target ids that a head may draft."""

    ids: torch.Tensor
    """int64 [v], ascending."""
    covered: int
    """Tokens of the answers that are in the vocabulary."""
    total: int
    """Tokens of the answers."""

    @property
    def coverage(self) -> float:
        """Share of the answers' tokens that can be drafted, an upper bound of the acceptance rate."""
        return self.covered / max(1, self.total)

    def __str__(self) -> str:
        return f"draft vocabulary: {len(self.ids):,} tokens cover {self.coverage:.2%} of {self.total:,} answer tokens"


def draft_vocabulary(
    answers: Iterable[Sequence[int]], size: int, vocabulary: int, always: Iterable[int] = ()
) -> DraftVocabulary:
    """The most frequent tokens of answers.

    Of equally frequent tokens the lower id wins.

    Args:
        answers: token ids of answers, without prompts.
        size: number of tokens.
        vocabulary: size of the target's vocabulary.
        always: tokens that must be in it, such as those that end a text.

    Raises:
        ConfigError: the size exceeds the target's vocabulary, or is below the number of ``always``.
    """
    counts = Counter(token for answer in answers for token in answer)
    forced = set(always)
    if not len(forced) <= size <= vocabulary or not size:
        low, high = max(1, len(forced)), vocabulary
        raise ConfigError(f"the draft vocabulary must have from {low} to {high} tokens, not {size}")
    by_use = sorted((token for token in range(vocabulary) if token not in forced), key=lambda token: -counts[token])
    ids = sorted(forced | set(by_use[: size - len(forced)]))
    return DraftVocabulary(torch.tensor(ids), sum(counts[token] for token in ids), counts.total())


def draft_columns(ids: torch.Tensor | None, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of target tokens in a draft vocabulary.

    Args:
        ids: int64 [v], ascending; None is the whole vocabulary.
        tokens: int64 [...], target ids.

    Returns:
        Their columns, 0 for missing tokens, and whether they are present: int64 [...], bool [...].
    """
    if ids is None:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    columns = torch.searchsorted(ids, tokens.contiguous()).clamp(max=len(ids) - 1)
    present = ids[columns] == tokens
    return columns.where(present, 0), present
