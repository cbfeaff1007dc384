"""The training loop, for every method that has a recipe.

The weights depend only on the data, the options and the seed (with a fixed ``precision``, on one machine).  A killed
training resumes from its last state and reaches the same weights, bit for bit.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from rich.console import Console

from outrider.errors import TrainingError
from outrider.train.evaluation.held_out import Evaluation, evaluate, with_best_tokens
from outrider.train.evaluation.intervals import gain
from outrider.train.features.batches import Batch, Batches, Position
from outrider.train.features.teacher import Teacher
from outrider.train.loop.precision import computing_in, time_precisions
from outrider.train.loop.resume import (
    BEST,
    SHAPES,
    STATE,
    check_identity,
    check_precision,
    fingerprint,
    identity,
    load_best,
    load_state,
    save_state,
)
from outrider.train.loop.workers import Workers, repeatable
from outrider.train.recipes.base import Acceptance, LossReport, Recipe, mean_parts
from outrider.train.report.findings import Findings
from outrider.train.report.progress import LiveProgress
from outrider.train.report.record import JUDGING, Record, Stopwatch
from outrider.train.settings import AUTO, Settings

STEPS: Final = "steps.csv"
EVALUATIONS: Final = "held_out.csv"


@dataclass
class TrainingProgress:
    """The progress of a training, part of its state on disk; only :class:`Training` writes it."""

    step: int = 0
    tokens: int = 0
    precision: str = ""
    best: int = -1
    """The number of the best evaluation so far."""
    best_weights: str = ""
    """Fingerprint of its weights; empty in a state of an earlier version."""
    worse: int = 0
    """The latest evaluations in a row that are significantly worse than the best."""
    ended: str = ""
    """Why the training ended; empty before."""
    judged: list[Evaluation] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(tokens, loss) of every step."""
    rows: tuple[int, int] = (0, 0)
    """Rows written to the records of steps and of evaluations."""


class Trained(NamedTuple):
    """The result of a training."""

    head: Any
    """The head with the best weights on held-out texts."""
    findings: Findings


@dataclass(frozen=True, eq=False)
class Task:
    """A network to train, and its data.  The teacher is on the workers' device."""

    recipe: Recipe
    head: Any
    """The initial head; a state in the folder replaces its weights."""
    teacher: Teacher
    stream: Batches
    held_out: Sequence[Batch]
    facts: Mapping[str, object] = field(default_factory=dict)
    """Facts that determine the weights, such as a hash of the texts; a training resumes only with the same."""
    target_name: str = ""
    """The target's name, for the title of the plot."""


class Training:
    """One training in one folder.

    Args:
        task: the network and its data.
        settings: options of the loop.
        folder: for the state, the best weights and the records.
        workers: the processes that take part; None is this one on the CPU.
        console: where to print; None is silent.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        folder: Path,
        *,
        workers: Workers | None = None,
        console: Console | None = None,
    ) -> None:
        self._recipe, self._teacher, self._stream, self._settings = task.recipe, task.teacher, task.stream, settings
        self._workers = workers or Workers()
        self._folder, self._console = folder, console if self._workers.rank == 0 else None
        self._head = task.head.to(self._workers.device)
        self._held_out, self._facts, self._target_name = task.held_out, task.facts, task.target_name
        self._weights = [weight for weight in self._head.parameters() if weight.requires_grad]
        self._optimiser = settings.optimiser(self._weights)
        self._progress = TrainingProgress()
        self._stopwatch = Stopwatch(self._workers.device)
        self._due = settings.evaluated_at()

    def run(self) -> Trained:
        """Train to the end, from the folder's state if there is one.

        Raises:
            TrainingError: the loss is NaN or infinite, the disk is full, or the folder holds another training.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        repeatable(self._workers.device)
        self._resume()
        now = self._progress
        now.ended = self._reason_to_end()  # with more patience, an ended training continues
        held_out = [batch.to(self._workers.device) for batch in self._held_out]
        self._held_out = with_best_tokens(held_out, self._teacher)
        steps = Record(self._folder / STEPS, rows=now.rows[0]) if self._workers.rank == 0 else None
        evaluations = Record(self._folder / EVALUATIONS, rows=now.rows[1]) if self._workers.rank == 0 else None
        saved = time.monotonic()
        with LiveProgress(self._console, self._settings.tokens, now.tokens) as live:
            if not now.precision:
                now.precision = self._choose_precision(live)
            if not now.judged:
                self._evaluate(evaluations, live)
            while not now.ended:
                self._step_within_memory(steps, live)
                new_best = self._evaluate_if_due(evaluations, live)
                now.ended = self._reason_to_end()
                if new_best or now.ended or time.monotonic() - saved >= self._settings.save_seconds:
                    self._save(steps, evaluations)
                    saved = time.monotonic()
            live.print(now.ended)
        return self._finish()

    def _step_within_memory(self, record: Record | None, live: LiveProgress) -> None:
        """One step, with a clear error if the device runs out of memory."""
        try:
            self._step(record, live)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"a step needs more memory than {self._workers.device} has; train with fewer --rows or a shorter "
                "--max-length, and another --output"
            ) from error

    def _step(self, record: Record | None, live: LiveProgress) -> None:
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
            loss, weight, tokens = self._summed(reports, tokens)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"the loss of step {now.step + 1} is not a finite number; train again with a lower --learning-rate "
                    f"than {settings.learning_rate:g}, or with --precision fp32"
                )
            now.step, now.tokens = now.step + 1, now.tokens + tokens
            norm = self._clip_gradients(weight)
            rate = settings.rate_at(now.tokens)
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)
        now.losses.append((now.tokens, loss))
        if record is not None:
            figures: dict[str, float] = {"step": now.step, "tokens": now.tokens, "epoch": self._stream.position.epoch}
            figures |= {"learning_rate": rate, "loss": loss, "gradient": norm} | mean_parts(reports)
            record.add(figures | {f"{name}_s": round(seconds, 3) for name, seconds in self._stopwatch.seconds.items()})
        recent = now.losses[-20:]
        live.step(
            now.tokens,
            sum(value for _, value in recent) / len(recent),
            now.tokens / self._stopwatch.total(without=JUDGING),
        )

    def _next_batch(self) -> Batch:
        """This worker's next batch: number ``rank`` of the next ``count`` in the stream."""
        with self._stopwatch.phase("data"):
            for _ in range(self._workers.rank):
                self._stream.skip()
            batch = next(self._stream).to(self._workers.device)
            for _ in range(self._workers.rank + 1, self._workers.count):
                self._stream.skip()
        return batch

    def _forward(self, batch: Batch, precision: str) -> LossReport:
        with self._stopwatch.phase("forward"), computing_in(precision, self._workers.device):
            return self._recipe.loss(self._head, batch, self._teacher)

    def _backward(self, loss: torch.Tensor) -> None:
        if loss.requires_grad:  # a batch without guesses has no gradient
            with self._stopwatch.phase("backward"):
                loss.backward()

    def _summed(self, reports: Sequence[LossReport], tokens: int) -> tuple[float, float, int]:
        """The step's mean loss, its weight and its tokens, over all workers."""
        weight = sum(report.weight for report in reports)
        loss = sum(float(report.loss.detach()) * report.weight for report in reports)
        sums = torch.tensor([loss, weight, tokens], dtype=torch.float64, device=self._workers.device)
        loss, weight, tokens = self._workers.total(sums).tolist()
        return loss / max(weight, 1e-9), weight, int(tokens)

    def _clip_gradients(self, weight: float) -> float:
        """Average the gradients over all workers' rows and clip them; return their norm before clipping."""
        for parameter in self._weights:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self._workers.total(parameter.grad).div_(max(weight, 1e-9))
        return float(torch.nn.utils.clip_grad_norm_(self._weights, self._settings.clip))

    def _choose_precision(self, live: LiveProgress) -> str:
        """The requested precision, or the faster one; all workers take the first one's choice."""
        if self._settings.precision != AUTO:
            return self._settings.precision
        position = self._stream.position
        batch = self._next_batch()
        self._stream.position = position

        def step(precision: str) -> None:
            report = self._forward(batch, precision)
            self._backward(report.loss)
            self._optimiser.zero_grad(set_to_none=True)

        times = time_precisions(step)
        self._stopwatch.seconds.clear()
        live.print(str(times))
        bf16 = self._workers.rank == 0 and times.fastest == "bf16"
        return (
            "bf16" if float(self._workers.total(torch.tensor([float(bf16)], device=self._workers.device))) else "fp32"
        )

    def _reason_to_end(self) -> str:
        """Why the training ends now; empty if it does not."""
        settings, now = self._settings, self._progress
        if now.tokens >= settings.tokens:
            return f"trained on all {settings.tokens:,} tokens"
        if settings.patience and now.worse >= settings.patience:
            change = gain(now.judged[now.best].counts, now.judged[-1].counts)
            by = f", the latest by {change.as_change}" if change else ""
            return f"stopped early: the last {now.worse} judgements were significantly worse than the best{by}"
        return ""

    def _evaluate_if_due(self, record: Record | None, live: LiveProgress) -> bool:
        """Evaluate the head if that is due; return whether its weights are the new best."""
        now = self._progress
        if not any(now.judged[-1].tokens < due <= now.tokens for due in self._due):
            return False
        self._evaluate(record, live)
        return now.best == len(now.judged) - 1

    def _evaluate(self, record: Record | None, live: LiveProgress) -> None:
        """Evaluate the head and keep its weights if it is the best so far; every worker gets the same result."""
        now = self._progress
        with self._stopwatch.phase(JUDGING):
            acceptance = self._of_the_first(evaluate(self._recipe, self._head, self._held_out, self._teacher))
        latest = Evaluation.of(now.step, now.tokens, acceptance)
        now.judged.append(latest)
        if now.best < 0 or latest.length > now.judged[now.best].length:
            weights = self._head.state_dict()
            now.best, now.worse, now.best_weights = len(now.judged) - 1, 0, fingerprint(weights)
            if self._workers.rank == 0:
                save_state(self._folder / BEST, {"head": weights, "judgement": now.best})
        else:
            change = gain(now.judged[now.best].counts, latest.counts)
            now.worse = now.worse + 1 if change is not None and change.high < 0 else 0
        if record is not None:
            rates = {f"acceptance_{depth + 1}": rate for depth, rate in enumerate(acceptance.rates)}
            tested = {f"tested_{depth + 1}": count for depth, count in enumerate(acceptance.tested.tolist())}
            record.add({"step": now.step, "tokens": now.tokens, "length": acceptance.accepted_length} | rates | tested)
        live.evaluated(latest)

    def _of_the_first(self, acceptance: Acceptance) -> Acceptance:
        """The first worker's acceptance; others may differ by rounding, but all must decide the same."""
        first = int(self._workers.rank == 0)
        parts = (acceptance.accepted_by_text, acceptance.tested_by_text)
        return Acceptance(*(self._workers.total(part * first) for part in parts))

    def _identity(self) -> dict[str, object]:
        """Everything that determines the weights; only a state with the same identity can resume."""
        shapes = {name: list(weight.shape) for name, weight in self._head.state_dict().items()}
        own = {"workers": self._workers.count, SHAPES: shapes}
        return identity(self._recipe, self._settings, {**own, **self._facts})

    def _resume(self) -> None:
        state = load_state(self._folder / STATE)
        if state is None:
            return
        check_identity(self._folder, state["identity"], self._identity(), self._recipe)
        check_precision(self._folder, state["progress"]["precision"], self._settings.precision)
        self._head.load_state_dict(state["head"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._stream.position = Position(*state["position"])
        torch.set_rng_state(state["rng"])
        judged = [Evaluation(**item) for item in state["progress"].pop("judged")]
        self._progress = now = TrainingProgress(**state["progress"], judged=judged)
        self._stopwatch.seconds = state["seconds"]
        load_best(self._folder, now.best, now.best_weights, or_later=True)

    def _save(self, steps: Record | None, evaluations: Record | None) -> None:
        if steps is None or evaluations is None:
            return
        self._progress.rows = (steps.rows, evaluations.rows)
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
        """Load the best weights into the head, calibrate it, and report."""
        now = self._progress
        self._workers.meet()  # the first worker may still be writing
        self._head.load_state_dict(load_best(self._folder, now.best, now.best_weights))
        measured = self._recipe.calibrate(self._head, self._held_out, self._teacher)
        findings = Findings(
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
            findings.write(self._folder)
        if self._console is not None:
            for line in findings.lines():
                self._console.print(line)
        return Trained(self._head, findings)
