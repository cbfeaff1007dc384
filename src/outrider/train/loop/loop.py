"""The training loop: batches in, a better head out, for whichever method a recipe describes.

A run is a function of its data, its options and its seed (with ``precision`` given, on one machine).  Killed at any
moment it goes on from the last state that was written, to the same weights bit for bit.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from rich.console import Console

from outrider.errors import TrainingError
from outrider.train.evaluation.intervals import gain
from outrider.train.evaluation.judge import Judgement, judge, prepared
from outrider.train.features.batches import Batch, Position, Stream
from outrider.train.features.teacher import Teacher
from outrider.train.loop.identity import SHAPES, check_identity, check_precision, identity
from outrider.train.loop.optimiser import optimiser
from outrider.train.loop.precision import probe, under
from outrider.train.loop.state import STATE, fingerprint, fingerprint_of, load_state, save_state
from outrider.train.loop.workers import Alone, Workers, repeatable
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, mean_parts
from outrider.train.report.progress import Watch
from outrider.train.report.record import Record
from outrider.train.report.report import Findings
from outrider.train.report.stopwatch import JUDGING, Stopwatch
from outrider.train.settings import AUTO, Settings

if TYPE_CHECKING:
    from outrider.train.features.vocabulary import DraftVocabulary
    from outrider.train.gather import Texts

BEST: Final = "best.pt"
STEPS: Final = "steps.csv"
JUDGED: Final = "held_out.csv"


@dataclass
class Progress:
    """How far a training has come; written by :class:`Training` alone, and part of its state."""

    step: int = 0
    tokens: int = 0
    precision: str = ""
    best: int = -1
    """Which judgement is the best so far."""
    best_weights: str = ""
    """Names the weights of that judgement; empty in an older state."""
    worse: int = 0
    """Judgements in a row, up to the latest, that are surely worse than the best."""
    ended: str = ""
    """Why it is over; empty while it is not."""
    judged: list[Judgement] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(tokens, loss) of every step."""
    rows: tuple[int, int] = (0, 0)
    """Rows written to the records of steps and of judgements."""


class Trained(NamedTuple):
    """What a training gave."""

    head: Any
    """The head with the weights that were judged best."""
    findings: Findings
    apart: Mapping[str, Acceptance] = {}
    """See :meth:`outrider.train.recipes.base.Recipe.apart`."""
    texts: Texts | None = None
    """What it was trained on, where that was gathered."""
    vocabulary: DraftVocabulary | None = None
    """The reduced draft vocabulary that was made for it."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained on what.  The teacher is where the workers' device is."""

    recipe: Recipe
    head: Any
    """The head before its first step; a state found in the folder replaces its weights."""
    teacher: Teacher
    stream: Stream
    held_out: Sequence[Batch]
    facts: Mapping[str, object] = field(default_factory=dict)
    """What else decides the weights, such as a name of the texts: a training begun on others cannot be gone on with."""
    target_name: str = ""
    """Told in what is written."""


class Training:
    """One training in one folder."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        folder: Path,
        *,
        workers: Workers | None = None,
        console: Console | None = None,
    ) -> None:
        """Make ready; nothing is computed or written yet.

        Args:
            task: what is trained on what.
            settings: options of the loop.
            folder: where the state, the best weights and the records are kept.
            workers: the processes that take part; None is this one on the CPU.
            console: where to print; None is silent.
        """
        self._recipe, self._teacher, self._stream, self._settings = task.recipe, task.teacher, task.stream, settings
        self._workers = workers or Alone()
        self._folder, self._console = folder, console if self._workers.rank == 0 else None
        self._head = task.head.to(self._workers.device)
        self._held_out, self._facts, self._target_name = task.held_out, task.facts, task.target_name
        self._weights = [weight for weight in self._head.parameters() if weight.requires_grad]
        self._optimiser = optimiser(self._weights, settings)
        self._progress = Progress()
        self._stopwatch = Stopwatch(self._workers.device)
        self._due = settings.judged_at()

    def run(self) -> Trained:
        """Train to the end, from wherever the folder's state left off.

        Raises:
            TrainingError: the loss is no number, the disk is full, or the folder holds another training.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        repeatable(self._workers.device)
        self._resume()
        now = self._progress
        now.ended = self._verdict()  # more patience than it had ended with goes on
        self._held_out = prepared([batch.to(self._workers.device) for batch in self._held_out], self._teacher)
        steps = Record(self._folder / STEPS, rows=now.rows[0]) if self._workers.rank == 0 else None
        judged = Record(self._folder / JUDGED, rows=now.rows[1]) if self._workers.rank == 0 else None
        saved = time.monotonic()
        with Watch(self._console, self._settings.tokens, now.tokens) as watch:
            if not now.precision:
                now.precision = self._choose_precision(watch)
            if not now.judged:
                self._judge(judged, watch)
            while not now.ended:
                self._step_within_memory(steps, watch)
                kept = self._judged_if_due(judged, watch)
                now.ended = self._verdict()
                if kept or now.ended or time.monotonic() - saved >= self._settings.save_seconds:
                    self._save(steps, judged)
                    saved = time.monotonic()
            watch.say(now.ended)
        return self._finish()

    def _step_within_memory(self, record: Record | None, watch: Watch) -> None:
        """One step.

        Raises:
            TrainingError: it takes more memory than the device has.
        """
        try:
            self._step(record, watch)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"a step takes more memory than {self._workers.device} has; train with fewer --rows or a shorter "
                "--max-length, and another --output"
            ) from error

    def _step(self, record: Record | None, watch: Watch) -> None:
        """One step of the optimiser, over every worker's batches."""
        settings, now = self._settings, self._progress
        reports, tokens = [], 0
        for _ in range(settings.accumulate):
            batch = self._next_batch()
            report = self._forward(batch, now.precision)
            reports.append(report)
            tokens += int(batch.mask.sum())
            self._backward(report.loss * report.weight)
        with self._stopwatch.phase("step"):
            loss, weight, seen = self._summed(reports, tokens)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of step {now.step + 1} is not a number; train again with a lower --learning-rate "
                    f"than {settings.learning_rate:g}, or with --precision fp32"
                )
            now.step, now.tokens = now.step + 1, now.tokens + seen
            norm = self._gradient(weight)
            rate = settings.rate_at(now.tokens)
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)
        now.losses.append((now.tokens, loss))
        if record is not None:
            figures: dict[str, float] = {"step": now.step, "tokens": now.tokens, "epoch": self._stream.position.epoch}
            figures |= {"learning_rate": rate, "loss": loss, "gradient": norm} | mean_parts(reports)
            record.add(figures | {f"{name}_s": round(spent, 3) for name, spent in self._stopwatch.seconds.items()})
        recent = now.losses[-20:]
        watch.step(
            now.tokens,
            sum(value for _, value in recent) / len(recent),
            now.tokens / self._stopwatch.total(without=JUDGING),
        )

    def _next_batch(self) -> Batch:
        """This worker's next batch: of every ``count`` in the order of the stream, number ``rank``."""
        with self._stopwatch.phase("data"):
            for _ in range(self._workers.rank):
                self._stream.skip()
            batch = next(self._stream).to(self._workers.device)
            for _ in range(self._workers.rank + 1, self._workers.count):
                self._stream.skip()
        return batch

    def _forward(self, batch: Batch, precision: str) -> LossReport:
        with self._stopwatch.phase("forward"), under(precision, self._workers.device):
            return self._recipe.loss(self._head, batch, self._teacher)

    def _backward(self, loss: torch.Tensor) -> None:
        if loss.requires_grad:  # a batch where nothing could be guessed has no gradient
            with self._stopwatch.phase("backward"):
                loss.backward()

    def _summed(self, reports: Sequence[LossReport], tokens: int) -> tuple[float, float, int]:
        """The step's mean loss, its weight and its tokens, over all workers."""
        weight = sum(report.weight for report in reports)
        loss = sum(float(report.loss.detach()) * report.weight for report in reports)
        sums = torch.tensor([loss, weight, tokens], dtype=torch.float64, device=self._workers.device)
        loss, weight, seen = self._workers.total(sums).tolist()
        return loss / max(weight, 1e-9), weight, int(seen)

    def _gradient(self, weight: float) -> float:
        """Make the gradients those of the mean over every worker's rows, at most ``clip`` long; gives the length."""
        for parameter in self._weights:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self._workers.total(parameter.grad).div_(max(weight, 1e-9))
        return float(torch.nn.utils.clip_grad_norm_(self._weights, self._settings.clip))

    def _choose_precision(self, watch: Watch) -> str:
        """The precision asked for, or the faster one on this machine; all workers take the first one's choice."""
        if self._settings.precision != AUTO:
            return self._settings.precision
        place = self._stream.position
        batch = self._next_batch()
        self._stream.position = place

        def step(precision: str) -> None:
            report = self._forward(batch, precision)
            self._backward(report.loss)
            self._optimiser.zero_grad(set_to_none=True)

        tried = probe(step)
        self._stopwatch.seconds.clear()
        watch.say(str(tried))
        slower = self._workers.rank == 0 and tried.fastest != "fp32"
        chosen = self._workers.total(torch.tensor([float(slower)], device=self._workers.device))
        return "bf16" if float(chosen) else "fp32"

    def _verdict(self) -> str:
        """Why the training is over, or nothing while it is not."""
        settings, now = self._settings, self._progress
        if now.tokens >= settings.tokens:
            return f"all {settings.tokens:,} tokens were trained on"
        if settings.patience and now.worse >= settings.patience:
            change = gain(now.judged[now.best].counts, now.judged[-1].counts)
            by = f", the latest by {change.as_change}" if change else ""
            return f"stopped early: the last {now.worse} judgements were surely worse than the best{by}"
        return ""

    def _judged_if_due(self, record: Record | None, watch: Watch) -> bool:
        """Judge the head where that is due; says whether its weights are the new best."""
        now = self._progress
        if not any(now.judged[-1].tokens < due <= now.tokens for due in self._due):
            return False
        self._judge(record, watch)
        return now.best == len(now.judged) - 1

    def _judge(self, record: Record | None, watch: Watch) -> None:
        """Judge the head and keep its weights if it is the best so far; every worker comes to the same result."""
        now = self._progress
        with self._stopwatch.phase(JUDGING):
            found = self._of_the_first(judge(self._recipe, self._head, self._held_out, self._teacher))
        judgement = Judgement.of(now.step, now.tokens, found)
        now.judged.append(judgement)
        if now.best < 0 or judgement.length > now.judged[now.best].length:
            now.best, now.worse, now.best_weights = len(now.judged) - 1, 0, fingerprint(self._head)
            if self._workers.rank == 0:
                save_state(self._folder / BEST, {"head": self._head.state_dict(), "judgement": now.best})
        else:
            change = gain(now.judged[now.best].counts, judgement.counts)
            now.worse = now.worse + 1 if change is not None and change.high < 0 else 0
        if record is not None:
            rates = {f"acceptance_{depth + 1}": rate for depth, rate in enumerate(found.rates)}
            tested = {f"tested_{depth + 1}": count for depth, count in enumerate(found.tested.tolist())}
            record.add({"step": now.step, "tokens": now.tokens, "length": found.accepted_length} | rates | tested)
        watch.judged(judgement)

    def _of_the_first(self, found: Acceptance) -> Acceptance:
        """What the first worker found: others may differ by a rounding, and all must decide alike."""
        mine = int(self._workers.rank == 0)
        parts = (found.accepted_by_text, found.tested_by_text)
        return Acceptance(*(self._workers.total(part * mine) for part in parts))

    def _identity(self) -> dict[str, object]:
        """What decides the weights: a state written under anything else cannot be gone on with."""
        shapes = {name: list(weight.shape) for name, weight in self._head.state_dict().items()}
        own = {"workers": self._workers.count, SHAPES: shapes}
        return identity(self._recipe, self._settings, {**own, **self._facts})

    def _resume(self) -> None:
        state = load_state(self._folder / STATE)
        if state is None:
            return
        check_identity(self._folder, state["identity"], self._identity(), self._recipe)
        check_precision(self._folder, state["progress"]["precision"], self._settings.precision, AUTO)
        self._head.load_state_dict(state["head"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._stream.position = Position(*state["position"])
        torch.set_rng_state(state["rng"])
        judged = [Judgement(**item) for item in state["progress"].pop("judged")]
        self._progress = Progress(**state["progress"], judged=judged)
        self._stopwatch.seconds = state["seconds"]
        self._best_weights(later=True)

    def _best_weights(self, *, later: bool = False) -> Mapping[str, torch.Tensor]:
        """The weights that the state calls the best.

        Args:
            later: those of a later judgement will do, since going on comes to it again.

        Raises:
            TrainingError: they are not there.
        """
        path, now = self._folder / BEST, self._progress
        kept = load_state(path)
        fits = kept is not None and (
            (later and kept["judgement"] > now.best)
            or (kept["judgement"] == now.best and now.best_weights in ("", fingerprint_of(kept["head"])))
        )
        if kept is None or not fits:
            raise TrainingError(
                f"{path} does not hold the best weights of the training in {STATE} beside it; put the right file back, "
                f"or remove {self._folder} and train again"
            )
        weights: Mapping[str, torch.Tensor] = kept["head"]
        return weights

    def _save(self, steps: Record | None, judged: Record | None) -> None:
        if steps is None or judged is None:
            return
        self._progress.rows = (steps.rows, judged.rows)
        state = {
            "identity": self._identity(),
            "head": self._head.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "position": tuple(self._stream.position),
            "rng": torch.get_rng_state(),
            "progress": dataclasses.asdict(self._progress),
            "seconds": self._stopwatch.seconds,
        }
        save_state(self._folder / STATE, state)

    def _finish(self) -> Trained:
        """Give the head its best weights; draw and sum up what was found."""
        now = self._progress
        self._workers.meet()  # the first may still be writing
        self._head.load_state_dict(self._best_weights())
        measured = self._recipe.calibrate(self._head, self._held_out, self._teacher)
        found = Findings(
            method=self._recipe.method,
            ended=now.ended,
            steps=now.step,
            precision=now.precision,
            judged=now.judged,
            best_index=now.best,
            losses=now.losses,
            stopwatch=self._stopwatch,
            measured=measured,
            target_name=self._target_name,
        )
        if self._workers.rank == 0:
            found.write(self._folder)
        if self._console is not None:
            for line in found.lines():
                self._console.print(line)
        return Trained(self._head, found)
