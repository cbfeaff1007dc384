"""Speedups as ratios of totals, with bootstrap intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

_RESAMPLES: Final = 2000
_LEVEL: Final = 0.95


def speedup(
    tokens: Sequence[float], seconds: Sequence[float], plain_tokens: Sequence[float], plain_seconds: Sequence[float]
) -> float | None:
    """Tokens per second over those of plain decoding; None if nothing was decoded."""
    if not sum(seconds) or not sum(plain_seconds) or not sum(plain_tokens):
        return None
    return (sum(tokens) / sum(seconds)) / (sum(plain_tokens) / sum(plain_seconds))


def speedup_interval(
    tokens: Sequence[float],
    seconds: Sequence[float],
    plain_tokens: Sequence[float],
    plain_seconds: Sequence[float],
    *,
    seed: int = 0,
) -> tuple[float, float] | None:
    """A 95 % bootstrap interval of :func:`speedup`, which resamples prompts.

    Args:
        tokens: per prompt.
        seconds: per prompt.
        plain_tokens: per prompt, same order.
        plain_seconds: per prompt, same order.
        seed: of the draws.

    Returns:
        Lower and upper end; None with fewer than two prompts.
    """
    table = np.array([tokens, seconds, plain_tokens, plain_seconds], dtype=np.float64)
    if table.shape[1] < 2:
        return None
    draws = np.random.default_rng(seed).integers(0, table.shape[1], (_RESAMPLES, table.shape[1]))
    drawn = table[:, draws].sum(axis=2)
    kept = drawn[:, (drawn > 0).all(axis=0)]
    if not kept.shape[1]:
        return None
    ratios = (kept[0] / kept[1]) / (kept[2] / kept[3])
    low, high = np.quantile(ratios, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
