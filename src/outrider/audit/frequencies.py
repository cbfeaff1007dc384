"""Checks of the dice: what the rules emit has the target's own distribution."""

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


class TextCounter(Protocol):
    """An engine whose emitted texts are counted, and their exact law."""

    def batches(self, draws: int) -> int:
        """How many batches make so many draws, the last one rounded up."""
        ...

    def count(self, batch: int) -> torch.Tensor:
        """How often each text came in one batch; every batch has seeds of its own."""
        ...

    def drawn(self, counts: torch.Tensor) -> int:
        """How many draws some counts are of."""
        ...

    def fit(self, counts: torch.Tensor) -> Fit:
        """How well counts of some batches together fit the law."""
        ...


@dataclass(frozen=True, eq=False)
class Redraw:
    """One engine on recorded models: a :class:`TextCounter` whose rows are the user's own."""

    recording: RecordedTexts
    config: DrafterConfig
    verifier: Verifier
    temperature: float
    seed: int
    plant: Callable[[Parts], Parts] | None = None
    """Puts a fault into the engine's parts."""
    each: int = MOST_EACH
    """Draws of one request."""

    def batches(self, draws: int) -> int:
        return -(-draws // (self.each * ABREAST))

    @cached_property
    def cells(self) -> dict[tuple[int, ...], float]:
        """Every text that can be drawn with its exact probability."""
        return self.recording.law(TARGET, self.temperature)

    def fit(self, counts: torch.Tensor) -> Fit:
        return fit(counts, self.cells)

    def drawn(self, counts: torch.Tensor) -> int:
        return int(counts.sum())

    def count(self, batch: int) -> torch.Tensor:
        """The result is as for :func:`tally`."""
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
    """How often each text occurs.

    Returns:
        int64 [cells + 1], the last counts texts that cannot be drawn.
    """
    place = {text: index for index, text in enumerate(cells)}
    return torch.bincount(torch.tensor([place.get(text, len(place)) for text in texts]), minlength=len(place) + 1)


def fit(counts: torch.Tensor, cells: Mapping[tuple[int, ...], float]) -> Fit:
    """How well what :func:`tally` counted fits the probabilities."""
    return chi_square(counts, torch.tensor([*cells.values(), 0.0], dtype=torch.float64))


def count(source: TextCounter, batch: int) -> torch.Tensor:
    """A function, so that workers can be sent it."""
    return source.count(batch)


class TaskPool(Protocol):
    """Runs a function over items, in other processes or here, and yields the results in order."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        """The results of the function, in order."""
        ...


class Here:
    """Does the work in this process."""

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        return map(function, *items)


def check_frequencies(name: str, source: TextCounter, draws: int, alarm: float, workers: TaskPool) -> CheckResult:
    """Compare frequencies of emitted texts with their exact probabilities.

    Args:
        name: of the check.
        source: the engine.
        draws: texts to draw, rounded up to whole batches.
        alarm: odds of a false alarm.
        workers: who draws.
    """
    batches = range(source.batches(draws))
    try:
        counts: torch.Tensor = sum(workers.map(count, [source] * len(batches), batches))
    except NumericsError as error:
        return CheckResult(name, False, str(error))
    found = source.fit(counts)
    return CheckResult(name, found.p_value >= alarm, _detail(found, source.drawn(counts), alarm))


class Sought(NamedTuple):
    """What came of drawing from a faulty engine."""

    caught: bool
    draws: int
    fit: Fit
    needed: int
    """About so many draws would have caught it; 0 where it was caught."""


def seek(source: TextCounter, draws: int, alarm: float, workers: TaskPool, abreast: int) -> Sought:
    """Draw from a faulty engine until its frequencies are seen to be wrong.

    Args:
        source: the engine.
        draws: give up after about this many.
        alarm: odds that an engine without fault is taken for a faulty one, all looks together.
        workers: who draws.
        abreast: batches before the first look; each further look comes when as many again have been drawn.
    """
    looks = _looks(abreast, source.batches(draws))
    begun, total = 0, torch.tensor(0)
    for look in looks:
        batches = range(begun, look)
        total, begun = total + sum(workers.map(count, [source] * len(batches), batches)), look
        found, drawn = source.fit(total), source.drawn(total)
        if found.p_value < alarm / len(looks):
            return Sought(True, drawn, found, 0)
    return Sought(False, drawn, found, needed(found, drawn, alarm / len(looks)))


def _looks(first: int, last: int) -> list[int]:
    """After how many batches to look, twice as many each time."""
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
        f"would show a total variation of {sure:.3f}"
    )
