"""The best scores of each row: logit over temperature plus keyed noise, in one pass where kernels allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from outrider.errors import NumericsError
from outrider.kernels.native import cpu
from outrider.sampling.noise import Purpose, choice_words, gumbel_range


class ChoiceNoise(NamedTuple):
    """Names the choice noise of some rows; see :mod:`outrider.sampling.noise`."""

    seed: int
    positions: Sequence[int]
    """Absolute position of each row's token."""
    choice: int


def best_scores(
    logits: torch.Tensor, vocabulary: int, temperature: float, noise: ChoiceNoise | None, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``width`` best tokens of each row, best first, equal scores by rising id.

    Args:
        logits: float32 [rows, ≥ vocabulary]; minus infinity bans a token.
        vocabulary: columns that count.
        temperature: positive; 1 where there is no noise.
        noise: None scores by the logits alone.
        width: how many; past what the vocabulary holds, ids are −1 and scores −∞.

    Returns:
        int64 ids and float32 scores, both [rows, width], on the CPU.

    Raises:
        NumericsError: a row holds NaN or infinity, or bans every token.
    """
    if cpu is None or logits.device.type != "cpu":
        return reference(logits, vocabulary, temperature, noise, width)
    ids = torch.empty(len(logits), width, dtype=torch.int64)
    scores = torch.empty(len(logits), width)
    positions = torch.tensor(noise.positions if noise else [0] * len(logits), dtype=torch.int64)
    seed, choice = (noise.seed, noise.choice) if noise else (None, 0)
    try:
        cpu.best_scores(
            logits.contiguous().numpy(),
            vocabulary,
            temperature,
            seed,
            positions.numpy(),
            choice,
            int(Purpose.CHOICE),
            ids.numpy(),
            scores.numpy(),
        )
    except ValueError:
        check(logits[:, :vocabulary])
        raise
    return ids, scores


def reference(
    logits: torch.Tensor, vocabulary: int, temperature: float, noise: ChoiceNoise | None, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain torch: the specification."""
    rows = logits[:, :vocabulary]
    check(rows)
    scores = rows / temperature
    if noise is not None:
        for row, position in zip(scores, noise.positions, strict=True):
            words = choice_words(position, noise.choice)
            row += gumbel_range(noise.seed, vocabulary, words, row.device).float()
    values, ids = torch.sort(scores, dim=1, descending=True, stable=True)
    lost = max(0, width - vocabulary)
    ids = torch.where(torch.isinf(values), -1, ids)[:, :width]
    padding = torch.nn.functional.pad
    return padding(ids, (0, lost), value=-1).cpu(), padding(values[:, :width], (0, lost), value=-torch.inf).cpu()


def check(rows: torch.Tensor) -> None:
    """Refuse rows from which no token can be chosen.

    Raises:
        NumericsError: a row holds NaN or infinity, or minus infinity alone.
    """
    best = rows.amax(dim=1)
    if bool(torch.isfinite(best).all()):
        return
    if bool((best == -torch.inf).any()):
        raise NumericsError("no token is left to choose from; loosen allowed_token_ids, bad_words or logit_bias")
    raise NumericsError("the target's logits hold NaN or infinity; the request was ended")
