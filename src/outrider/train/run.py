"""A whole training: gather the data, train every network, write the drafter."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.heads.checkpoint import TargetFacts
from outrider.llm import LLM
from outrider.train.loop.resume import TRAINING, fingerprint
from outrider.train.loop.training import Task, Trained, Training
from outrider.train.loop.warm_start import check_start, load_start, start_facts
from outrider.train.loop.workers import Workers, locked, workers
from outrider.train.products import UNTRAINED
from outrider.train.recipes.base import Recipe
from outrider.train.report.outcome import TrainingOutcome
from outrider.train.settings import Settings
from outrider.train.training_data import DataConfig, TextSource, TrainingData, gather, hidden_rows, known_facts


def train(
    llm: LLM,
    recipe: Recipe,
    source: TextSource,
    output: Path,
    *,
    target_name: str,
    data: DataConfig | None = None,
    settings: Settings | None = None,
    console: Console | None = None,
) -> TrainingOutcome:
    """Make missing texts, train a drafter on them, and write it to a folder.

    Args:
        llm: the target, without speculation.
        recipe: the method and its options.
        source: the texts.
        output: folder for the drafter; its folder ``training`` gets the state to resume from.
        target_name: the target's name in files.
        data: how much of the texts is used.
        settings: options of the loop.
        console: where to print; None is silent.

    Raises:
        ConfigError: there are no texts, another process uses one of the folders, or see
            :func:`outrider.train.loop.warm_start.check_start` and :func:`outrider.train.training_data.gather`.
        TrainingError: see :meth:`outrider.train.loop.training.Training.run`.
    """
    config, target, settings = data or DataConfig(), llm.engine.target, settings or Settings()
    console = console or Console(quiet=True)
    check_start(recipe, settings.start_from, output, target)
    working = workers(target.device)
    with locked(output / TRAINING, "training", "--output") if working.rank == 0 else nullcontext():
        gathered = _gathered(llm, recipe, source, config, console, working)
        vocabulary = None if settings.start_from else gathered.vocabulary  # a head to start from brings its own
        if vocabulary is not None:
            console.print(str(vocabulary))
        job = _Job(llm, recipe, source, output, target_name, config, settings, console)
        trained = job.trained(gathered, working)
        heads, teacher = [one.head for one in trained], gathered.teacher.to(working.device)
        by_member = recipe.acceptance_by_member(
            heads, [batch.to(working.device) for batch in gathered.held_out], teacher
        )
        for name, acceptance in by_member.items():
            console.print(f"{name}: held-out {acceptance}")
    return TrainingOutcome(
        model=target_name,
        method=recipe.method,
        output=output,
        findings=trained[-1].findings,
        texts=gathered.texts,
        vocabulary=vocabulary,
        by_member=by_member,
        starts=recipe.product.starts_from_heads,
        online=source.online,
    )


def _gathered(
    llm: LLM, recipe: Recipe, source: TextSource, data: DataConfig, console: Console, working: Workers
) -> TrainingData:
    """The data to train on; the first worker locks the folder and makes what is missing."""
    with working.first_alone(), ExitStack() as held:
        if working.rank == 0:
            held.enter_context(locked(source.folder, "gathering texts", "--data-folder"))
            gather(llm, source, console, hidden_rows(llm, recipe, source, data), data)
        return TrainingData.of(llm, recipe, source, data, console)


@dataclass(frozen=True, eq=False)
class _Job:
    """One command's training."""

    llm: LLM
    recipe: Recipe
    source: TextSource
    output: Path
    target_name: str
    data: DataConfig
    settings: Settings
    console: Console

    def trained(self, gathered: TrainingData, working: Workers) -> list[Trained]:
        """Train every network, one after another, and write each."""
        recipe, settings, target = self.recipe, self.settings, self.llm.engine.target
        facts, product = TargetFacts.of(target, self.target_name), recipe.product
        known = known_facts(
            self.source, self.data, recipe.layers_read(target), target, started=bool(settings.start_from)
        )
        known |= {**gathered.facts, **start_facts(recipe, settings.start_from, target)}
        teacher, done = gathered.teacher.to(working.device), list[Trained]()
        while (stage := recipe.next_stage([one.head for one in done])) is not None:
            if settings.start_from:
                head = load_start(stage, Path(settings.start_from), target)
            else:
                ids = gathered.vocabulary.ids if gathered.vocabulary else None
                head = stage.head(target, ids, settings.seed)
            if product.shows_untrained and not done and working.rank == 0:
                product.write(self.output / UNTRAINED, head, facts, {})
            folder = product.place(self.output, len(done))
            deciding = known | {"trained before": [fingerprint(one.head.state_dict()) for one in done]}
            stream, held_out = gathered.stream(settings.seed), gathered.held_out
            task = Task(stage, head, teacher, stream, held_out, deciding, self.target_name)
            done.append(Training(task, settings, folder / TRAINING, workers=working, console=self.console).run())
            if working.rank == 0:
                product.write(folder, done[-1].head, facts, _provenance(recipe, settings, self.data))
        return done


def _provenance(recipe: Recipe, settings: Settings, data: DataConfig) -> dict[str, Any]:
    """How a drafter was trained, for its file."""
    return {
        "method": recipe.method,
        "recipe": dataclasses.asdict(recipe),  # type: ignore[call-overload]
        # A published head must not contain the path of its author's folder.
        "settings": dataclasses.asdict(settings) | {"start_from": Path(settings.start_from).name},
        "data": dataclasses.asdict(data),
    }
