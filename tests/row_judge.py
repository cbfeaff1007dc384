"""Judges tokens that kernels chose against the plain torch specification, with the rounding they are allowed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import torch

from outrider.sampling.best import ChoiceNoise
from outrider.sampling.distribution import Truncation, surviving_ids
from outrider.sampling.noise import choice_words, gumbel_range

ULPS, EDGE = 4, 1e-6
"""How near two best scores may be, and how near to top_p the mass before a token, for roundings to decide."""


def specified(scaled: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Surviving ids of a row over its temperature, by the specification."""
    if truncation.keeps_all:
        return torch.nonzero(torch.isfinite(scaled)).squeeze(1)
    return surviving_ids(scaled, top_k=truncation.top_k, top_p=truncation.top_p, min_p=truncation.min_p)


def at_edge(scaled: torch.Tensor, truncation: Truncation, token: int) -> bool:
    """Whether a token is in or out of the nucleus by a rounding error."""
    if truncation.top_p == 1.0:
        return False
    kept = specified(scaled, Truncation(truncation.top_k, 1.0, truncation.min_p))
    values, order = torch.sort(scaled[kept].double(), descending=True, stable=True)
    mass = torch.softmax(values, 0)
    place = torch.nonzero(kept[order] == token)
    return bool(len(place)) and abs(float((torch.cumsum(mass, 0) - mass)[place[0, 0]]) - truncation.top_p) <= EDGE


def judge(
    logits: torch.Tensor, temperature: float, truncation: Truncation, noise: ChoiceNoise, tokens: torch.Tensor
) -> Counter[str]:
    """Compare the tokens chosen from some rows, all at one position, with the specification's.

    Returns:
        How many are "equal", "allowed" to differ, and "wrong".
    """
    ((seed, position, choice),) = set(zip(*noise, strict=True))
    drawn = gumbel_range(seed, logits.shape[1], choice_words(position, choice), torch.device("cpu")).float()
    scaled = logits / temperature
    perturbed = scaled + drawn
    found: Counter[str] = Counter()
    for row, scores, token in zip(scaled, perturbed, tokens.tolist(), strict=True):
        ids = specified(row, truncation)
        expected = int(ids[scores[ids].argmax()])
        if token == expected:
            found["equal"] += 1
            continue
        ulp = 2.0 ** (math.frexp(float(scores[expected].abs()))[1] - 24)
        near = bool((ids == token).any()) and float(scores[expected] - scores[token]) <= ULPS * ulp
        edge = at_edge(row, truncation, token) or at_edge(row, truncation, expected)
        found["allowed" if near or edge else "wrong"] += 1
    return found


def rows(count: int, vocabulary: int, case: int) -> torch.Tensor:
    """Rows of logits, flat and peaked, with ties and with bans, in turn; float32 [count, vocabulary]."""
    generator = torch.Generator().manual_seed(case)
    made = (0.3, 1.0, 3.0, 8.0)[case % 4] * torch.randn(count, vocabulary, generator=generator)
    if case % 3 == 1:
        made = made.bfloat16().float()
    if case % 5 == 2 and vocabulary > 1:
        made[:, torch.randint(vocabulary, (vocabulary // 2,), generator=generator)] = -torch.inf
        made[:, case % vocabulary] = 0.0
    return made


TRUNCATIONS = (
    Truncation(),
    Truncation(top_p=0.9),
    Truncation(top_k=40),
    Truncation(min_p=0.05),
    Truncation(top_p=0.5),
    Truncation(top_k=20, top_p=0.8),
    Truncation(top_p=0.99),
    Truncation(top_k=50, top_p=0.95, min_p=0.02),
    Truncation(top_p=0.95, min_p=0.001),
    Truncation(top_k=700, top_p=0.97),
    Truncation(top_p=1e-6),
)
TEMPERATURES = (1.0, 0.7, 0.2, 1.5)


def cases(vocabularies: tuple[int, ...], group: int) -> Iterator[tuple[torch.Tensor, float, Truncation, ChoiceNoise]]:
    """Without end: a group of rows that share a position, with every truncation, temperature and vocabulary in turn."""
    case = 0
    while True:
        for truncation in TRUNCATIONS:
            logits = rows(group, vocabularies[case % len(vocabularies)], case)
            noise = ChoiceNoise.of((0x9E3779B97F4A7C15 * (case + 1)) % 2**64, [case * 17] * group, case % 3)
            yield logits, TEMPERATURES[case // 7 % len(TEMPERATURES)], truncation, noise
            case += 1
