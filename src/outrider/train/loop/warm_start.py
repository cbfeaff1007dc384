"""Warm start: the head a training begins with, refused before any work is done if it does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch

from outrider.errors import ConfigError
from outrider.heads.checkpoint import CONFIG
from outrider.heads.loading import read_head
from outrider.models.base import TargetModel
from outrider.train.loop.resume import fingerprint
from outrider.train.recipes.base import Recipe

_OWN: Final = ("vocabulary", "target_vocabulary", "embedding", "temperatures", "chances")
"""Parts of a head's configuration that it brings along: what it can draft, and what was measured of it."""


def check_start(recipe: Recipe, start: str, output: Path, target: TargetModel) -> None:
    """Refuse what a training cannot begin with.

    Args:
        recipe: what is to be trained.
        start: folder of the head to begin with; empty is a new one.
        output: where the drafter is to be written.
        target: the model it drafts for.

    Raises:
        ModelError: the head to begin with cannot be read.
        ConfigError: it does not fit, nothing of this method begins with a head, an option does not fit the target, or a
            network of an earlier training would join those of this one.
    """
    if start and not recipe.product.starts_from_heads:
        raise ConfigError(f"{recipe.method} begins with layers of the target, not with a head; leave out --start-from")
    if start:
        load_start(recipe, Path(start), target)
    elif recipe.product.starts_from_heads:
        recipe.head(target, torch.arange(1), 0)  # options that do not fit the target
    number = networks(recipe)
    places = [recipe.product.place(output, index) for index in range(number + 1)]
    if places[-1] not in places[:-1] and (places[-1] / CONFIG).exists():
        raise ConfigError(
            f"{places[-1]} is left of an earlier training and would join the {number} of this one; delete it, or "
            "name another folder with --output"
        )


def networks(recipe: Recipe) -> int:
    """How many networks a training makes, one after another."""
    return next(number for number in count(1) if recipe.next_stage([None] * number) is None)


def start_facts(recipe: Recipe, start: str, target: TargetModel) -> dict[str, object]:
    """What identifies the head that a training begins with, wherever it lies; empty for a new head."""
    return {"begins with": fingerprint(load_start(recipe, Path(start), target).state_dict())} if start else {}


def load_start(recipe: Recipe, start: Path, target: TargetModel) -> torch.nn.Module:
    """A head that was trained before, to be trained on.

    Raises:
        ModelError: it cannot be read.
        ConfigError: it is for another target or of another kind, reads other layers than this training captures, or
            differs in something that the recipe decides.
    """
    checkpoint = read_head(start).fitted(target)
    head: Any = checkpoint.build()
    if hasattr(head, "share"):  # its LM head is the target's, and not in the file
        head.share(target)
    wanted: Any = recipe.head(target, torch.arange(1), 0)
    if type(head) is not type(wanted):
        kind = type(wanted).__module__.rpartition(".")[2]
        raise ConfigError(
            f"{start} is a head of kind {checkpoint.kind}, and {recipe.method} trains those of kind {kind}"
        )
    if tuple(head.config.hidden_layers) != tuple(wanted.config.hidden_layers):
        raise ConfigError(
            f"{start} reads layers {list(head.config.hidden_layers)}, and {recipe.method} trains heads on layers "
            f"{list(wanted.config.hidden_layers)}"
        )
    _check_decided(recipe, start, dict(_leaves(head.config)), dict(_leaves(wanted.config)))
    trained: torch.nn.Module = head.requires_grad_(True).train()
    return trained


def _check_decided(recipe: Recipe, start: Path, own: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a head that differs in what the recipe decides; what no recipe sets is the head's own."""
    options = {item.name for item in dataclasses.fields(recipe)}  # type: ignore[arg-type]
    for name, value in wanted.items():
        if name in _OWN or not hasattr(recipe, name) or own[name] == value:
            continue
        way_out = f"give --{name.replace('_', '-')} {own[name]}" if name in options else "train its own method"
        raise ConfigError(
            f"{start} is a head with {name} {own[name]}, and this training's would have {value}; {way_out}, or begin "
            "without --start-from"
        )


def _leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a configuration, those of its parts included."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value)
        else:
            yield item.name, value
