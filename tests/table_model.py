"""A target whose distribution is a table: exact probabilities are known, and a pass costs microseconds.

Its token distribution depends on the last two tokens.  It reads them back from the paged cache it is given, so a row
left stale or moved wrongly by a commit shows up as a wrong distribution.
"""

from __future__ import annotations

import itertools
import math

import torch

from outrider.kv.pool import PagedCache
from outrider.kv.state import LayerStore
from outrider.models.base import HiddenLogits, TargetOutput
from outrider.tree import TreeBatch


class TableModel(HiddenLogits):
    """Order-two Markov model behind the target protocol.

    Args:
        table: float [vocabulary, vocabulary, vocabulary], logits by (token before last, last token).
        block: after so many output tokens the text starts anew, as if after two tokens 0: one long text then holds many
            independent short ones.  0 never starts anew.
        start: position of a block's first token.
    """

    backend = "table"
    row_invariant = True
    device = torch.device("cpu")
    row_bytes = 0
    source = None
    context_length = 4096

    def __init__(self, table: torch.Tensor, block: int = 0, start: int = 0) -> None:
        super().__init__(table.shape[0])
        self.table, self._block, self._start = table, block, start

    @classmethod
    def random(cls, vocabulary: int, seed: int, block: int = 0, start: int = 0) -> TableModel:
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randn(vocabulary, vocabulary, vocabulary, generator=generator), block, start)

    def near(self, seed: int, distance: float) -> TableModel:
        """Another model that mostly agrees: a drafter worth having."""
        generator = torch.Generator().manual_seed(seed)
        table = self.table + distance * torch.randn(self.table.shape, generator=generator)
        return TableModel(table, self._block, self._start)

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        tokens = batch.tokens.double().view(1, -1, 1)
        store = cache.layer(0, lambda: LayerStore(cache.slots, tokens, tokens))
        slots, before = [], []
        for sequence in batch.sequences:
            forced, tree = len(sequence.forced), sequence.tree
            held = cache.table(sequence.key).slots(0, sequence.context + sequence.tail)[-sequence.tail - 1 :].tolist()
            held = held if sequence.context else [-1, *held]  # the row before the layout's first, then the layout's
            slots += held[1 + sequence.skip :]
            parents = [*range(-1, forced), *(forced + parent for parent in (tree.parents[1:] if tree else ()))]
            before += [held[1 + parent] for parent in parents[sequence.skip : sequence.tail]]
        store.keys[0, slots] = tokens[0]
        known = store.keys[0, before, 0].long()
        known[torch.tensor(before) < 0] = 0
        last = batch.tokens
        if self._block:
            place = (batch.positions + 1 - self._start) % self._block
            known, last = torch.where(place < 2, 0, known), torch.where(place < 1, 0, last)
        logits = self.table[known, last]
        return TargetOutput(logits[batch.wanted], dict.fromkeys(layers, logits))

    def joint(
        self, prompt: list[int], length: int, temperature: float = 1.0, top_k: int = 0, min_p: float = 0.0
    ) -> dict[tuple[int, ...], float]:
        """Exact probability of every continuation of a prompt."""
        scores = self.table.double() / temperature
        if top_k:
            scores = scores.masked_fill(scores < scores.topk(top_k).values[..., -1:], -torch.inf)
        if min_p:
            scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) + math.log(min_p), -torch.inf)
        law = torch.softmax(scores, dim=-1)
        result = {}
        for text in itertools.product(range(self.vocabulary), repeat=length):
            probability, before, last = 1.0, prompt[-2] if len(prompt) > 1 else 0, prompt[-1]
            for token in text:
                probability *= float(law[before, last, token])
                before, last = last, token
            result[text] = probability
        return result
