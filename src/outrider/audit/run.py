"""Run a whole audit."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch
from rich.console import Console

from outrider.audit.frequencies import Here, TaskPool
from outrider.audit.parts import Load, Parts
from outrider.audit.progress import run_stages
from outrider.audit.report import CheckResult, FaultResult, Report
from outrider.audit.stages import FALSE_ALARM, Effort, FrequencyStages, TextStages
from outrider.errors import ConfigError
from outrider.kernels.native import set_threads
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.verify import Verifier, registered


class NotingLoader:
    """Loads each draft model once and remembers it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._found: dict[str, tuple[TargetModel, Tokenizer | None]] = {}

    def __call__(self, name: str) -> tuple[TargetModel, Tokenizer | None]:
        """Load a model by name."""
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    @property
    def models(self) -> dict[str, TargetModel]:
        """Every model that was loaded, by name."""
        return {name: model for name, (model, _) in self._found.items()}


def check_lossless(verifier: Verifier) -> None:
    """Refuse an acceptance rule that is not lossless.

    Raises:
        ConfigError: the rule is lossy; the message names lossless ones.
    """
    if not verifier.lossless:
        exact = ", ".join(name for name, rule in registered().items() if rule.lossless)
        raise ConfigError(
            f"verifier {verifier.name!r} is not lossless, so there is nothing to prove; audit one of: {exact}"
        )


def audit(
    parts: Parts,
    prompts: Sequence[Sequence[int]],
    *,
    model: str,
    others: Sequence[Parts] = (),
    effort: Effort | None = None,
    progress: Console | None = None,
) -> Report:
    """Prove that an engine is lossless, or show where it is not.

    Args:
        parts: the user's engine.
        prompts: token ids.
        model: the model's name, for the report.
        others: the same engine with other drafters; their texts are compared too.
        effort: how much to do.
        progress: where to show progress; None shows nothing.

    Raises:
        ConfigError: the acceptance rule is not lossless.
        RequestError: a prompt is empty or leaves no room for output.
    """
    for engine in (parts, *others):
        check_lossless(engine.verifier)
    effort, began = effort or Effort(), time.perf_counter()
    loader = NotingLoader(parts.load)
    parts = replace(parts, load=loader)
    parts.build(1, 1)  # loads the draft models
    others = [replace(engine, load=loader) for engine in others]
    checks: list[CheckResult] = []
    faults: list[FaultResult] = []
    with _workers(effort.workers) as workers:
        stages = TextStages(parts, others, prompts, effort).stages()
        if effort.scope == "all":
            stages += FrequencyStages(parts, prompts, effort, loader.models, workers).stages()
        for result in run_stages(stages, progress):
            if isinstance(result, FaultResult):
                faults.append(result)
            else:
                checks.append(result)
    seconds = time.perf_counter() - began
    algorithms = ", ".join(engine.config.method for engine in (parts, *others))
    names = {"model": model, "algorithm": algorithms, "verifier": parts.verifier.name}
    alarm = FALSE_ALARM if effort.scope == "all" else 0.0  # comparing texts involves no chance
    return Report(**names, checks=tuple(checks), faults=tuple(faults), false_alarm=alarm, seconds=seconds)


def _one_thread() -> None:
    torch.set_num_threads(1)
    set_threads(1)


@contextmanager
def _workers(count: int) -> Iterator[TaskPool]:
    if count == 0:
        yield Here()
        return
    # torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, initializer=_one_thread) as pool:
        yield pool
