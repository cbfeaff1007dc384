"""Checks that the tokens an acceptance rule emits have the target's distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, Protocol

import torch

from outrider.audit.chi_square import Fit, chi_square, detectable, needed
from outrider.audit.parts import Parts
from outrider.audit.recorded import RecordedTexts, recorded_engine
from outrider.audit.report import CheckResult
from outrider.drafters.base import DrafterConfig
from outrider.errors import NumericsError
from outrider.models.base import TargetModel
from outrider.sampling.params import SamplingParams
from outrider.verify.base import Verifier

TARGET: Final = "the target"
ITSELF: Final = "the target itself, flattened"
"""Names of two models of every recording; the second is a drafter that is often wrong."""
FLATTENING: Final = 0.125
"""Factor on the target's logits that gives the drafter's."""
ABREAST: Final = 64
"""Concurrent requests."""
MOST_EACH: Final = 50
"""Most draws of one request."""


def flattened(rows: torch.Tensor) -> torch.Tensor:
    """Logits of a drafter: the target's candidates, almost equally likely, and one that the target excludes.

    Args:
        rows: float32 [states, vocabulary], the target's logits.
    """
    best, favourite = rows.max(dim=1, keepdim=True)
    flat = (rows - best) * FLATTENING
    stranger = (favourite + 1) % rows.shape[1]
    return flat.scatter(1, stranger, flat.gather(1, stranger).clamp(min=-1.0))


class TextCounter(Protocol):
    """Counts the texts that an engine emits, and knows their exact distribution."""

    def batches(self, draws: int) -> int:
        """The number of batches for so many draws, rounded up."""
        ...

    def count(self, batch: int) -> torch.Tensor:
        """Draw one batch, with its own seeds, and count each text."""
        ...

    def drawn(self, counts: torch.Tensor) -> int:
        """The number of draws in counts."""
        ...

    def fit(self, counts: torch.Tensor) -> Fit:
        """How well the summed counts of batches fit the distribution."""
        ...


@dataclass(frozen=True, eq=False)
class Redraw:
    """A :class:`TextCounter` of an engine on recorded rows of the user's model."""

    recording: RecordedTexts
    config: DrafterConfig
    verifier: Verifier
    temperature: float
    seed: int
    plant: Callable[[Parts], Parts] | None = None
    """Plants a fault in the engine's parts."""
    each: int = MOST_EACH
    """Draws of one request."""

    def batches(self, draws: int) -> int:
        return -(-draws // (self.each * ABREAST))

    @cached_property
    def cells(self) -> dict[tuple[int, ...], float]:
        """Every possible text and its exact probability."""
        return self.recording.law(TARGET, self.temperature)

    def fit(self, counts: torch.Tensor) -> Fit:
        return fit(counts, self.cells)

    def drawn(self, counts: torch.Tensor) -> int:
        return int(counts.sum())

    def count(self, batch: int) -> torch.Tensor:
        recording = self.recording
        params = SamplingParams(temperature=self.temperature, max_tokens=recording.length * self.each)
        parts = Parts(
            target=recording.model(TARGET),
            tokenizer=None,
            load=partial(_recorded, recording),
            config=self.config,
            verifier=self.verifier,
            engine=recorded_engine(recording.laws(params)),
        )
        seeds = range(self.seed + batch * ABREAST, self.seed + (batch + 1) * ABREAST)
        faulty = self.plant(parts) if self.plant else parts
        texts = [
            tuple(request.output_ids[first : first + recording.length])
            for request in faulty.complete([recording.prompt] * ABREAST, [replace(params, seed=seed) for seed in seeds])
            for first in range(0, len(request.output_ids), recording.length)
        ]
        return tally(texts, self.cells)


def _recorded(recording: RecordedTexts, name: str) -> tuple[TargetModel, None]:
    return recording.model(name), None


def tally(texts: Iterable[tuple[int, ...]], cells: Mapping[tuple[int, ...], float]) -> torch.Tensor:
    """Count each text.

    Returns:
        int64 [cells + 1]; the last cell counts impossible texts.
    """
    place = {text: index for index, text in enumerate(cells)}
    return torch.bincount(torch.tensor([place.get(text, len(place)) for text in texts]), minlength=len(place) + 1)


def fit(counts: torch.Tensor, cells: Mapping[tuple[int, ...], float]) -> Fit:
    """How well the counts of :func:`tally` fit the probabilities."""
    return chi_square(counts, torch.tensor([*cells.values(), 0.0], dtype=torch.float64))


class TaskPool(Protocol):
    """Runs a function over items, in this process or in others."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        """The results of the function, in order."""
        ...


class Here:
    """Runs in this process."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        return map(function, *items)


def check_frequencies(name: str, source: TextCounter, draws: int, alarm: float, workers: TaskPool) -> CheckResult:
    """Compare frequencies of emitted texts with their exact probabilities.

    Args:
        name: of the check.
        source: draws and counts.
        draws: texts to draw, rounded up to whole batches.
        alarm: probability of a false alarm.
        workers: run the batches.
    """
    try:
        counts: torch.Tensor = sum(workers.map(source.count, range(source.batches(draws))))
    except NumericsError as error:
        return CheckResult(name, False, str(error))
    found = source.fit(counts)
    return CheckResult(name, found.p_value >= alarm, _detail(found, source.drawn(counts), alarm))


class Sought(NamedTuple):
    """The result of :func:`seek`."""

    caught: bool
    draws: int
    fit: Fit
    needed: int
    """Draws that would have caught the fault, about; 0 if it was caught."""


def seek(source: TextCounter, draws: int, alarm: float, workers: TaskPool, abreast: int) -> Sought:
    """Draw from a faulty engine until its frequencies are significantly wrong.

    Args:
        source: draws and counts.
        draws: give up after about this many.
        alarm: probability that a correct engine is taken for a faulty one, over all looks.
        workers: run the batches.
        abreast: batches before the first look; the number doubles from look to look.
    """
    looks = _looks(abreast, source.batches(draws))
    begun, total = 0, torch.tensor(0)
    for look in looks:
        total, begun = total + sum(workers.map(source.count, range(begun, look))), look
        found, drawn = source.fit(total), source.drawn(total)
        if found.p_value < alarm / len(looks):
            return Sought(True, drawn, found, 0)
    return Sought(False, drawn, found, needed(found, drawn, alarm / len(looks)))


def _looks(first: int, last: int) -> list[int]:
    """The numbers of batches after which to look, doubling."""
    looks = [min(first, last)]
    while looks[-1] < last:
        looks.append(min(2 * looks[-1], last))
    return looks


def _detail(found: Fit, draws: int, alarm: float) -> str:
    if found.impossible:
        return f"{found.impossible} of {draws:,} texts have probability 0"
    sure = detectable(draws, found.degrees, alarm)
    return (
        f"χ² {found.statistic:.0f} at {found.degrees} degrees, p {found.p_value:.2g}; {draws:,} draws "
        f"detect a total variation of {sure:.3f}"
    )
