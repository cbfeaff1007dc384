"""A target that answers with a fixed text."""

from __future__ import annotations

import torch
from byte_text import SIZE

from outrider.kv.pool import PagedCache
from outrider.models.base import HiddenLogits, TargetOutput
from outrider.tree import TreeBatch


class Script(HiddenLogits):
    """Answers every prompt of one length with a fixed text, whatever was said before: position decides.

    Args:
        prompt: token ids; only their number counts.
        answer: token ids of the text.
        vocabulary: tokens there are.
        context_length: tokens of prompt and text.
    """

    backend, source = "script", None
    row_invariant, device, context_length, row_bytes = True, torch.device("cpu"), 512, 0

    def __init__(self, prompt: list[int], answer: list[int], vocabulary: int = SIZE, context_length: int = 512) -> None:
        super().__init__(vocabulary)
        self.context_length = context_length
        self._text, self._start = answer, len(prompt)

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        logits = torch.zeros(len(batch.wanted), self.vocabulary)
        for row, position in enumerate(batch.positions[batch.wanted].tolist()):
            place = position + 1 - self._start
            if 0 <= place < len(self._text):
                logits[row, self._text[place]] = 9.0
        return TargetOutput(logits, {})
