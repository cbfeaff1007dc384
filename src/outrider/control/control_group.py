"""The live control group: some rounds decode plainly, so that the true speedup is measured while serving.

Rounds are compared only with rounds of about the same load, since a pass for many requests costs more per round and
less per token.  Rounds that compute prompts are left out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final, NamedTuple

_FEWEST: Final = 8
"""Rounds of each kind at one load before it counts."""
_MEMORY: Final = 4000.0
"""Rounds of one load after which its past counts half."""
_DEVIATIONS: Final = 1.96
"""Of a 95 % interval."""


class Speedup(NamedTuple):
    """Tokens per second with speculation over tokens per second without."""

    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float


@dataclass(eq=False)
class _Load:
    """Sums over the rounds of one load."""

    plain: float = 0.0
    """Control rounds."""
    plain_each: float = 0.0
    """Their seconds per token, summed; and squared."""
    plain_squares: float = 0.0
    rounds: float = 0.0
    """Rounds with speculation."""
    tokens: float = 0.0
    seconds: float = 0.0
    tokens_squares: float = 0.0
    products: float = 0.0
    seconds_squares: float = 0.0

    def halve(self) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value / 2)


class ControlGroup:
    """Chooses the control rounds, and compares.

    Args:
        share: share of rounds that decode plainly.
        seed: of its own dice, which no text depends on.
    """

    def __init__(self, share: float, seed: int = 0) -> None:
        self._share, self._dice = share, random.Random(seed)
        self._loads: dict[int, _Load] = {}

    def draw(self) -> bool:
        """Whether the next round belongs to the control group."""
        return self._dice.random() < self._share

    def observe(self, running: int, tokens: int, seconds: float, *, control: bool) -> None:
        """Count a round that only decoded.

        Args:
            running: requests in it.
            tokens: what it emitted.
            seconds: its length.
            control: whether it decoded plainly by lot; a round in which nobody had a draft is not of the group.
        """
        load = self._loads.setdefault(running.bit_length(), _Load())
        if control:
            each = seconds / max(1, tokens)
            load.plain += 1
            load.plain_each += each
            load.plain_squares += each * each
        else:
            load.rounds += 1
            load.tokens += tokens
            load.seconds += seconds
            load.tokens_squares += tokens * tokens
            load.products += tokens * seconds
            load.seconds_squares += seconds * seconds
        if load.plain + load.rounds > _MEMORY:
            load.halve()

    @property
    def speedup(self) -> Speedup | None:
        """The speedup over all loads that have enough rounds of both kinds; None if none has."""
        loads = [load for load in self._loads.values() if min(load.plain, load.rounds) >= _FEWEST]
        if not loads:
            return None
        actual = sum(load.seconds for load in loads)
        means = [load.plain_each / load.plain for load in loads]
        value = sum(mean * load.tokens for mean, load in zip(means, loads, strict=True)) / actual
        variance = 0.0
        for mean, load in zip(means, loads, strict=True):
            spread = max(0.0, load.plain_squares / load.plain - mean * mean) / (load.plain - 1)
            residuals = (
                mean * mean * load.tokens_squares
                - 2 * mean * value * load.products
                + value * value * load.seconds_squares
            )
            variance += load.tokens**2 * spread + max(0.0, residuals)
        half = _DEVIATIONS * math.sqrt(variance) / actual
        return Speedup(value, value - half, value + half)
