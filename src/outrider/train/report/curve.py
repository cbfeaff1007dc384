"""The curve of held-out accepted length over training tokens, and its extrapolation if that is justified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from outrider.train.evaluation.held_out import Evaluation
from outrider.train.evaluation.intervals import LEAST_TEXTS, Interval, gain, interval_of, resamples

LEAST_POINTS: Final = 4
"""Fewest points for a fit: a curve of three numbers goes through any three points."""
_POWERS: Final = np.geomspace(0.02, 3.0, 400)


@dataclass(frozen=True)
class PowerLaw:
    """τ(n) = limit − scale · n^−power."""

    limit: float
    scale: float
    power: float
    error: float
    """Root mean square of the residuals."""
    tokens: float
    """Tokens of the last point."""

    def at(self, tokens: float) -> float:
        """τ at a token count."""
        return self.limit - self.scale * math.pow(tokens, -self.power)

    @property
    def bends(self) -> bool:
        """Whether the curve has begun to flatten; if not, the limit is unknown."""
        return self.power > 2 * float(_POWERS[0])

    def __str__(self) -> str:
        flat = "" if self.bends else "; it has not begun to flatten, so the limit is unknown"
        return (
            f"τ(n) ≈ {self.limit:.3f} − {self.scale:.3g}·n^−{self.power:.3f} (rms {self.error:.3f}): "
            f"{self.at(2 * self.tokens):.2f} at twice the tokens, {self.at(10 * self.tokens):.2f} at ten times{flat}"
        )


@dataclass(frozen=True)
class Outlook:
    """The expected τ with more tokens, or why it is unknown."""

    law: PowerLaw | None = None
    twice: Interval | None = None
    """τ at twice the tokens, with a bootstrap interval over texts."""
    reason: str = ""
    """Why there is no law."""

    def __str__(self) -> str:
        if self.law is None:
            return self.reason
        return f"{self.law}" + (f"; 95 % interval at twice the tokens {self.twice}" if self.twice else "")


class _PowerLaws(NamedTuple):
    """The best law of each of several curves, [curves] each; ``error`` is infinite if there is none."""

    limit: np.ndarray
    scale: np.ndarray
    power: np.ndarray
    error: np.ndarray

    def at(self, tokens: float) -> np.ndarray:
        """τ at a token count, in units of the last point's."""
        lengths: np.ndarray = self.limit - self.scale * tokens**-self.power
        return lengths


def fit(points: Sequence[tuple[int, float]], most: float = math.inf) -> PowerLaw | None:
    """Fit a saturating power law by least squares.

    Args:
        points: (tokens, τ); points with 0 tokens are ignored, because the law has no value there.
        most: the longest possible accepted length.

    Returns:
        The law; None with fewer than four points, or if no rising law stays below ``most``.
    """
    n, tau = np.array([point for point in points if point[0] > 0], dtype=np.float64).reshape(-1, 2).T
    if len(n) < LEAST_POINTS:
        return None
    laws = _laws(n / n.max(), tau[None], most)
    limit, scale, power, error = (float(column[0]) for column in laws)
    return (
        PowerLaw(limit, scale * float(n.max()) ** power, power, error, float(n.max())) if math.isfinite(error) else None
    )


def outlook(judged: Sequence[Evaluation], most: float) -> Outlook:
    """Extrapolate a curve of evaluations to twice the tokens.

    It is extrapolated only if τ rose significantly in the second half of the tokens: the interval is above zero.

    Args:
        judged: evaluations on the same texts, in order.
        most: the longest possible accepted length.
    """
    points = [evaluation for evaluation in judged if evaluation.tokens > 0 and evaluation.texts == judged[-1].texts]
    if len(points) < LEAST_POINTS:
        return Outlook(reason=f"too few evaluations to extrapolate: {len(points)} of at least {LEAST_POINTS}")
    last = points[-1]
    half = min(points[:-1], key=lambda evaluation: abs(evaluation.tokens - last.tokens / 2))
    rise = gain(half.counts, last.counts)
    if rise is None:
        return Outlook(reason=f"too few held-out texts to extrapolate: {last.texts} of at least {LEAST_TEXTS}")
    change = f"from {half.tokens:,} to {last.tokens:,} tokens τ changed by {rise.as_change}"
    law = fit([(evaluation.tokens, evaluation.length) for evaluation in points], most)
    if rise.low <= 0 or law is None:
        return Outlook(reason=f"too flat to extrapolate: {change}")
    drawn = resamples(last.texts)
    curves = np.stack([evaluation.counts.lengths(drawn) for evaluation in points], 1)
    laws = _laws(np.array([evaluation.tokens / last.tokens for evaluation in points]), curves, most)
    ahead = np.where(np.isfinite(laws.error), laws.at(2.0), curves[:, -1])  # without a law, τ stays
    return Outlook(law, interval_of(law.at(2 * last.tokens), ahead, last.texts))


def _laws(n: np.ndarray, tau: np.ndarray, most: float) -> _PowerLaws:
    """Fit curves.

    Args:
        n: [points], tokens as shares of the last.
        tau: [curves, points].
        most: the upper bound of a limit.
    """
    best = _PowerLaws(*(np.full(len(tau), value) for value in (np.nan, np.nan, np.nan, np.inf)))
    for power in _POWERS:
        columns = np.stack([np.ones_like(n), -(n**-power)], 1)
        solved = tau @ np.linalg.pinv(columns).T
        error = np.sqrt(np.mean((solved @ columns.T - tau) ** 2, 1))
        better = (solved[:, 1] > 0) & (solved[:, 0] <= most) & (error < best.error)
        for column, value in zip(best, (solved[:, 0], solved[:, 1], power, error), strict=True):
            column[better] = np.broadcast_to(value, len(tau))[better]
    return best
