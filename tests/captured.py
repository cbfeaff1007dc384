"""Captured texts of a tiny model, as the trainer reads them: greedy answers with the hidden rows that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from tiny import VOCABULARY, tiny_module

from outrider.train.features.teacher import Teacher

WIDTH, LAYERS = 32, 2


@dataclass(frozen=True, eq=False)
class Text:
    """See :class:`outrider.train.features.buffer.Captured`."""

    tokens: list[int]
    answer_start: int
    features: dict[int, torch.Tensor]


@dataclass(frozen=True)
class InMemory:
    """Texts as the only shard of training data."""

    texts: Sequence[Text]

    def __len__(self) -> int:
        return 1 if self.texts else 0

    def read(self, shard: int) -> Sequence[Text]:
        return self.texts


class TinyTarget:
    """As much of a target as the trainer asks for."""

    vocabulary, width, layers = VOCABULARY, WIDTH, LAYERS
    source: Path | None = None

    def __init__(self, seed: int = 0) -> None:
        self.module = tiny_module(seed, attention="sdpa")

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.module.model.embed_tokens.weight[tokens]

    def unembed(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.module.lm_head.weight.T

    def unembed_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.module.lm_head.weight[ids]


def teacher(seed: int = 0) -> Teacher:
    module = tiny_module(seed, attention="sdpa")
    return Teacher(module.lm_head.weight, module.model.embed_tokens.weight)


@lru_cache
@torch.no_grad()
def texts(count: int, answer: int = 24, seed: int = 0, temperature: float = 0.0) -> tuple[Text, ...]:
    """Texts of unequal length: prompts of 2 to 9 tokens, answers of ``answer`` and fewer."""
    module, generator = tiny_module(attention="sdpa"), torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        start = 2 + int(torch.randint(8, (), generator=generator))
        tokens = torch.randint(VOCABULARY, (1, start), generator=generator)
        for _ in range(answer - index % 5):
            logits = module(tokens).logits[0, -1]
            if temperature:
                token = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
            else:
                token = logits.argmax().view(1)
            tokens = torch.cat([tokens, token.view(1, 1)], 1)
        hidden = module(tokens, output_hidden_states=True).hidden_states
        rows = {0: hidden[1][0].half(), LAYERS: hidden[LAYERS][0].half()}
        made.append(Text(tokens[0].tolist(), start, rows))
    return tuple(made)
