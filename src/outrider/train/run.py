"""The whole way from a target to a drafter: what was gathered, training, and what is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from outrider.errors import ConfigError
from outrider.heads.checkpoint import TargetFacts, read_head
from outrider.llm import LLM
from outrider.target.base import TargetModel
from outrider.train.gather import Data, DataConfig, Source
from outrider.train.loop import Task, Trained, Training
from outrider.train.products import UNTRAINED
from outrider.train.recipes.base import Recipe
from outrider.train.settings import Settings

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
        ConfigError: there are no texts, the target cannot be trained for, or the head to start from is another kind.
        TrainingError: see :meth:`outrider.train.loop.Training.run`.
    """
    chosen, target, wishes = data or DataConfig(), llm.engine.target, settings or Settings()
    console = console or Console(quiet=True)
    gathered = Data.of(llm, recipe, source, chosen, console)
    told: dict[str, Any] = {
        "method": recipe.method,
        "recipe": dataclasses.asdict(recipe),  # type: ignore[call-overload]
        "settings": dataclasses.asdict(wishes),
        "data": dataclasses.asdict(chosen),
    }
    facts, product = TargetFacts.of(target, target_name), recipe.product
    done: list[Trained] = []
    while (stage := recipe.after([one.head for one in done])) is not None:
        if wishes.start_from:
            head = started_head(stage, Path(wishes.start_from), target)
        else:
            head = stage.head(target, gathered.vocabulary, wishes.seed)
        if product.shows_untrained and not done:
            product.write(output / UNTRAINED, head, facts, {})
        folder = product.place(output, len(done))
        task = Task(stage, head, gathered.teacher, gathered.stream(wishes.seed), gathered.held_out, gathered.texts)
        done.append(Training(task, wishes, folder / TRAINING, console=console).run())
        product.write(folder, done[-1].head, facts, told)
    apart = recipe.apart([one.head for one in done], gathered.held_out, gathered.teacher)
    for name, found in apart.items():
        console.print(f"{name}: held-out {found}")
    return done[-1]._replace(apart=apart)


def started_head(recipe: Recipe, start: Path, target: TargetModel) -> torch.nn.Module:
    """A head that was trained before, to be trained on.

    Raises:
        ModelError: it cannot be read.
        ConfigError: it is for another target, of another kind, or reads other layers than this training captures.
    """
    found = read_head(start).fitted(target)
    head: Any = found.build()
    due: Any = recipe.head(target, torch.arange(1), 0)
    if type(head) is not type(due):
        wanted = type(due).__module__.rpartition(".")[2]
        raise ConfigError(f"{start} is a head of kind {found.kind}, and {recipe.method} trains those of kind {wanted}")
    if tuple(head.config.hidden_layers) != tuple(due.config.hidden_layers):
        raise ConfigError(
            f"{start} reads layers {list(head.config.hidden_layers)}, and {recipe.method} trains heads on layers "
            f"{list(due.config.hidden_layers)}"
        )
    trained: torch.nn.Module = head.requires_grad_(True).train()
    return trained
