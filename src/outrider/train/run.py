"""The whole way from a target to a drafter: what was gathered, training, and what is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from outrider.heads.checkpoint import TargetFacts
from outrider.llm import LLM
from outrider.train.gather import Data, DataConfig, Source
from outrider.train.loop import Task, Trained, Training
from outrider.train.products import UNTRAINED
from outrider.train.recipes.base import Recipe
from outrider.train.settings import Settings
from outrider.train.start import check_start, started_head
from outrider.train.state import fingerprint
from outrider.train.workers import workers

TRAINING: Final = "training"


def train(
    llm: LLM,
    recipe: Recipe,
    source: Source,
    output: Path,
    *,
    target_name: str,
    data: DataConfig | None = None,
    settings: Settings | None = None,
    console: Console | None = None,
) -> Trained:
    """Train a drafter on what a source has gathered, and write it to a folder.

    Args:
        llm: the target, without speculation.
        recipe: what is trained and how.
        source: the texts.
        output: gets the drafter; what it takes to go on after a kill lies in its ``training`` folder.
        target_name: told in what is written.
        data: how much of the texts is used.
        settings: of the loop.
        console: where to print; None is silent.

    Raises:
        ConfigError: there are no texts, the target cannot be trained for, or see :func:`.start.check_start`.
        TrainingError: see :meth:`outrider.train.loop.Training.run`.
    """
    chosen, target, wishes = data or DataConfig(), llm.engine.target, settings or Settings()
    console = console or Console(quiet=True)
    check_start(recipe, wishes.start_from, output, target)
    working = workers(target.device)
    with working.first_alone():
        gathered = Data.of(llm, recipe, source, chosen, console)
    vocabulary = gathered.vocabulary
    if vocabulary is not None and not wishes.start_from:  # a head to start from brings its own
        console.print(str(vocabulary))
    facts, product = TargetFacts.of(target, target_name), recipe.product
    done: list[Trained] = []
    teacher = gathered.teacher.to(working.device)
    while (stage := recipe.after([one.head for one in done])) is not None:
        if wishes.start_from:
            head = started_head(stage, Path(wishes.start_from), target)
        else:
            head = stage.head(target, vocabulary.ids if vocabulary else None, wishes.seed)
        if product.shows_untrained and not done and working.rank == 0:
            product.write(output / UNTRAINED, head, facts, {})
        folder = product.place(output, len(done))
        deciding = {**gathered.facts, "trained before": [fingerprint(one.head) for one in done]}
        task = Task(stage, head, teacher, gathered.stream(wishes.seed), gathered.held_out, deciding)
        done.append(Training(task, wishes, folder / TRAINING, workers=working, console=console).run())
        if working.rank == 0:
            product.write(folder, done[-1].head, facts, _made_by(recipe, wishes, chosen))
    apart = recipe.apart([one.head for one in done], [batch.to(working.device) for batch in gathered.held_out], teacher)
    for name, found in apart.items():
        console.print(f"{name}: held-out {found}")
    return done[-1]._replace(apart=apart)


def _made_by(recipe: Recipe, settings: Settings, data: DataConfig) -> dict[str, Any]:
    """How a drafter was made, for its file."""
    return {
        "method": recipe.method,
        "recipe": dataclasses.asdict(recipe),  # type: ignore[call-overload]
        # A head that is passed on tells nothing of the folders of who made it.
        "settings": dataclasses.asdict(settings) | {"start_from": Path(settings.start_from).name},
        "data": dataclasses.asdict(data),
    }
