"""Check 3: what the ratio rules emit has the target's own distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, Protocol

import torch

from outrider.audit.chi_square import Fit, chi_square, detectable
from outrider.audit.parts import Parts
from outrider.audit.recorded import RecordedEngine, Recording
from outrider.audit.report import CheckResult
from outrider.drafters.base import DrafterConfig
from outrider.errors import NumericsError
from outrider.sampling.params import SamplingParams
from outrider.target.base import TargetModel
from outrider.verify.base import Verifier

TARGET: Final = "the target"
ITSELF: Final = "the target itself, flattened"
"""Names of two models of every recording; the second is a drafter that errs often, whatever the user's method does."""
FLATTENING: Final = 0.125
"""The drafter's logits are the target's times this."""
ABREAST: Final = 64
"""Requests side by side."""
MOST_EACH: Final = 50
"""Most draws of one request."""


def flattened(rows: torch.Tensor) -> torch.Tensor:
    """A drafter that knows the target's candidates but hardly prefers any, and adds one that the target rules out.

    Args:
        rows: float32 [states, vocabulary], the target's.
    """
    best, favourite = rows.max(dim=1, keepdim=True)
    flat = (rows - best) * FLATTENING
    stranger = (favourite + 1) % rows.shape[1]
    return flat.scatter(1, stranger, flat.gather(1, stranger).clamp(min=-1.0))


@dataclass(frozen=True, eq=False)
class Redraw:
    """One engine on recorded models, whose emitted texts are counted."""

    recording: Recording
    config: DrafterConfig
    verifier: Verifier
    temperature: float
    seed: int
    plant: Callable[[Parts], Parts] | None = None
    """Puts a fault into the engine's parts."""
    each: int = MOST_EACH
    """Draws of one request."""

    def batches(self, draws: int) -> int:
        """How many batches make so many draws, the last one rounded up."""
        return -(-draws // (self.each * ABREAST))

    @cached_property
    def cells(self) -> dict[tuple[int, ...], float]:
        """Every text that can be drawn with its exact probability."""
        return self.recording.law(TARGET, self.temperature)

    def fit(self, counts: torch.Tensor) -> Fit:
        """How well counts of texts fit; the last count is of texts that cannot be drawn."""
        return chi_square(counts, torch.tensor([*self.cells.values(), 0.0], dtype=torch.float64))


def count(redraw: Redraw, batch: int) -> torch.Tensor:
    """Draw one batch of texts.

    Args:
        redraw: what to draw from.
        batch: its number; every batch has seeds of its own.

    Returns:
        int64 [cells + 1], the last counts texts that cannot be drawn.
    """
    recording = redraw.recording
    params = SamplingParams(temperature=redraw.temperature, max_tokens=recording.length * redraw.each)
    parts = Parts(
        target=recording.model(TARGET),
        tokenizer=None,
        load=partial(_recorded, recording),
        config=redraw.config,
        verifier=redraw.verifier,
        engine=partial(RecordedEngine, recording.laws(params)),
    )
    seeds = range(redraw.seed + batch * ABREAST, redraw.seed + (batch + 1) * ABREAST)
    wishes = [replace(params, seed=seed) for seed in seeds]
    faulty = redraw.plant(parts) if redraw.plant else parts
    place = {text: index for index, text in enumerate(redraw.cells)}
    counts = torch.zeros(len(place) + 1, dtype=torch.int64)
    for request in faulty.complete([recording.prompt] * ABREAST, wishes):
        text = request.output_ids
        drawn = [tuple(text[first : first + recording.length]) for first in range(0, len(text), recording.length)]
        counts += torch.bincount(torch.tensor([place.get(one, len(place)) for one in drawn]), minlength=len(place) + 1)
    return counts


def _recorded(recording: Recording, name: str) -> tuple[TargetModel, None]:
    return recording.model(name), None


class Workers(Protocol):
    """Runs a function over items, in other processes or here, and yields the results in order."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        """See :class:`concurrent.futures.Executor`."""
        ...


class Here:
    """Does the work in this process."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        """See :class:`Workers`."""
        return map(function, *items)


def check_frequencies(name: str, redraw: Redraw, draws: int, alarm: float, workers: Workers) -> CheckResult:
    """Compare frequencies of emitted texts with their exact probabilities.

    Args:
        name: of the check.
        redraw: the engine.
        draws: texts to draw, rounded up to whole batches.
        alarm: odds of a false alarm.
        workers: who draws.
    """
    batches = range(redraw.batches(draws))
    try:
        counts: torch.Tensor = sum(workers.map(count, [redraw] * len(batches), batches))
    except NumericsError as error:
        return CheckResult(name, False, str(error))
    fit = redraw.fit(counts)
    return CheckResult(name, fit.p_value >= alarm, _detail(fit, int(counts.sum()), alarm))


def caught_after(redraw: Redraw, draws: int, alarm: float, workers: Workers, abreast: int) -> tuple[int, Fit]:
    """Draw from a faulty engine until its frequencies are seen to be wrong.

    Args:
        redraw: the engine.
        draws: give up after about this many.
        alarm: odds of a false alarm.
        workers: who draws.
        abreast: batches between two looks.

    Returns:
        Draws made, and the last fit.
    """
    total = torch.zeros(len(redraw.cells) + 1, dtype=torch.int64)
    for first in range(0, redraw.batches(draws), abreast):
        for counts in workers.map(count, [redraw] * abreast, range(first, first + abreast)):
            total += counts
        fit = redraw.fit(total)
        if fit.p_value < alarm:
            break
    return int(total.sum()), fit


def _detail(fit: Fit, draws: int, alarm: float) -> str:
    if fit.impossible:
        return f"{fit.impossible} of {draws:,} texts have probability 0"
    sure = detectable(draws, fit.degrees, alarm)
    return (
        f"χ² {fit.statistic:.0f} at {fit.degrees} degrees, p {fit.p_value:.2g}; {draws:,} draws "
        f"would show a total variation of {sure:.3f}"
    )
