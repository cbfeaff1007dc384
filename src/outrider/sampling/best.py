"""The best tokens of a row: logits over temperature, truncation, and keyed noise.

The kernels do this without sorting; :func:`reference` and :func:`surviving_ids` are the specification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from outrider.errors import NumericsError, RequestError
from outrider.kernels.native import cpu
from outrider.sampling.distribution import KEEP_ALL, Truncation, surviving_ids
from outrider.sampling.noise import Purpose, choice_words, gumbel, gumbel_range

UNDEFINED: Final = "the target's logits hold NaN or infinity, so the request ended; check the model and its dtype"
_NONE: Final = np.empty(0, dtype=np.int64)


class ChoiceNoise(NamedTuple):
    """Keys of the choice noise, one of each per row; see :mod:`outrider.sampling.noise`."""

    seeds: Sequence[int]
    positions: Sequence[int]
    """Absolute position of the row's token."""
    choices: Sequence[int]

    @classmethod
    def of(cls, seed: int, positions: Sequence[int], choice: int) -> ChoiceNoise:
        """Make the keys of one request's rows."""
        return cls([seed] * len(positions), positions, [choice] * len(positions))


def best_scores(
    logits: torch.Tensor,
    vocabulary: int,
    temperature: float,
    noise: ChoiceNoise | None,
    width: int,
    truncation: Truncation = KEEP_ALL,
    rows: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the ``width`` best tokens of each row, best first; of equal scores, the lowest id first.

    Args:
        logits: float32 [rows, ≥ vocabulary]; minus infinity bans a token.
        vocabulary: number of valid columns.
        temperature: positive; 1 without noise.
        noise: None adds none.
        width: number of tokens; if truncation leaves fewer, the rest have id −1 and score −∞.
        truncation: which tokens may be chosen.
        rows: indices of rows; None is all, in order.

    Returns:
        int64 ids and float32 scores, both [asked rows, width], on the CPU.

    Raises:
        NumericsError: a row holds NaN or infinity, before or after division by the temperature.
        RequestError: a row bans every token.
    """
    if not _in_kernels(logits) or width > cpu.MOST_WIDTH:
        return reference(logits if rows is None else logits[rows], vocabulary, temperature, noise, width, truncation)
    asked = np.array(range(len(logits)) if rows is None else rows, dtype=np.int64)
    ids = torch.empty(len(asked), width, dtype=torch.int64)
    scores = torch.empty(len(asked), width)
    row = logits.contiguous().numpy(), asked, vocabulary, temperature, *_limits(truncation, vocabulary)
    try:
        cpu.best_scores(*row, *_named(noise), int(Purpose.CHOICE), ids.numpy(), scores.numpy())
    except ValueError:
        check(logits[asked][:, :vocabulary] / temperature)
        raise
    return ids, scores


def reference(
    logits: torch.Tensor,
    vocabulary: int,
    temperature: float,
    noise: ChoiceNoise | None,
    width: int,
    truncation: Truncation = KEEP_ALL,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The specification of :func:`best_scores`, in plain torch."""
    rows = logits[:, :vocabulary] / temperature
    check(rows)
    ids = torch.full((len(rows), width), -1, dtype=torch.int64)
    scores = torch.full((len(rows), width), -torch.inf)
    for index, row in enumerate(rows):
        kept = None if truncation.keeps_all else _surviving(row, truncation)
        score = row if kept is None else row[kept]
        if noise is not None:
            score = score + _choice_noise(noise, index, vocabulary, kept, row.device)
        values, order = torch.sort(score, descending=True, stable=True)
        values = values[:width][torch.isfinite(values[:width])]
        best = order[: len(values)] if kept is None else kept[order[: len(values)]]
        ids[index, : len(values)], scores[index, : len(values)] = best.cpu(), values.cpu()
    return ids, scores


def survivors(row: torch.Tensor, temperature: float, truncation: Truncation) -> torch.Tensor:
    """Find the tokens of one row, float32 [vocabulary], that truncation leaves: int64 [survivors], ascending.

    Raises:
        NumericsError: the row holds NaN or infinity, before or after division by the temperature.
        RequestError: it bans every token.
    """
    if not _in_kernels(row):
        scaled = row / temperature
        check(scaled.unsqueeze(0))
        return _surviving(scaled, truncation)
    ids = torch.empty(len(row), dtype=torch.int64)
    limits = _limits(truncation, len(row))
    try:
        return ids[: cpu.survivors(row.contiguous().numpy(), len(row), temperature, *limits, ids.numpy())]
    except ValueError:
        check((row / temperature).unsqueeze(0))
        raise


def check(rows: torch.Tensor) -> None:
    """Refuse rows from which no token can be chosen.

    Raises:
        NumericsError: a row holds NaN or infinity.
        RequestError: every entry of a row is minus infinity.
    """
    best = rows.amax(dim=1)
    if bool(torch.isfinite(best).all()):
        return
    if bool((best == -torch.inf).any()):
        raise RequestError(
            "every token is banned; relax allowed_token_ids, bad_words, logit_bias, grammar or processors"
        )
    raise NumericsError(UNDEFINED)


def _in_kernels(logits: torch.Tensor) -> bool:
    return cpu is not None and logits.device.type == "cpu"


def _limits(truncation: Truncation, vocabulary: int) -> tuple[int, float, float]:
    """The truncation for the kernels; min_p is a logarithm, added to the best score."""
    least = math.log(truncation.min_p) if truncation.min_p > 0.0 else -math.inf
    return min(truncation.top_k, vocabulary), truncation.top_p, least


def _named(noise: ChoiceNoise | None) -> tuple[np.ndarray[Any, Any] | None, ...]:
    """Seeds, positions and choices for the kernels."""
    if noise is None:
        return None, _NONE, _NONE
    kinds = np.uint64, np.int64, np.int64
    return tuple([np.array(values, dtype=kind) for values, kind in zip(noise, kinds, strict=True)])


def _surviving(scaled: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    return surviving_ids(scaled, top_k=truncation.top_k, top_p=truncation.top_p, min_p=truncation.min_p)


def _choice_noise(
    noise: ChoiceNoise, index: int, vocabulary: int, ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    words = choice_words(noise.positions[index], noise.choices[index])
    seed = noise.seeds[index]
    drawn = gumbel_range(seed, vocabulary, words, device) if ids is None else gumbel(seed, ids, words)
    return drawn.float()
