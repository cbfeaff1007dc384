"""Warm start: loads the head that a training starts from, and refuses one that does not fit."""

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
"""Parts of a head's configuration that it keeps: its vocabulary and its calibration."""


def check_start(recipe: Recipe, start: str, output: Path, target: TargetModel) -> None:
    """Check that a training can start.

    Args:
        recipe: the method and its options.
        start: folder of the head to start from; empty for a new one.
        output: folder for the drafter.
        target: the model it drafts for.

    Raises:
        ModelError: the head to start from cannot be read.
        ConfigError: it does not fit, the method does not start from heads, an option does not fit the target, or the
            folder has more networks of an earlier training.
    """
    if start and not recipe.product.starts_from_heads:
        raise ConfigError(f"{recipe.method} starts from layers of the target, not from a head; leave out --start-from")
    if start:
        load_start(recipe, Path(start), target)
    elif recipe.product.starts_from_heads:
        recipe.head(target, torch.arange(1), 0)  # refuses options that do not fit the target
    number = networks(recipe)
    places = [recipe.product.place(output, index) for index in range(number + 1)]
    if places[-1] not in places[:-1] and (places[-1] / CONFIG).exists():
        raise ConfigError(
            f"{places[-1]} is from an earlier training and would be used with the {number} networks of this one; "
            "delete it, or name another folder with --output"
        )


def networks(recipe: Recipe) -> int:
    """The number of networks that a training makes, one after another."""
    return next(number for number in count(1) if recipe.next_stage([None] * number) is None)


def start_facts(recipe: Recipe, start: str, target: TargetModel) -> dict[str, object]:
    """A hash of the head that a training starts from; empty for a new head."""
    return {"begins with": fingerprint(load_start(recipe, Path(start), target).state_dict())} if start else {}


def load_start(recipe: Recipe, start: Path, target: TargetModel) -> torch.nn.Module:
    """Load a head to continue training.

    Raises:
        ModelError: it cannot be read.
        ConfigError: it is for another target or of another kind, reads other layers, or differs in something that the
            recipe sets.
    """
    checkpoint = read_head(start).fitted(target)
    head: Any = checkpoint.build()
    if hasattr(head, "share"):  # its LM head is the target's and not in the file
        head.share(target)
    wanted: Any = recipe.head(target, torch.arange(1), 0)
    if type(head) is not type(wanted):
        kind = type(wanted).__module__.rpartition(".")[2]
        raise ConfigError(
            f"{start} is a head of kind {checkpoint.kind}, but {recipe.method} trains kind {kind}; name another"
        )
    if tuple(head.config.hidden_layers) != tuple(wanted.config.hidden_layers):
        raise ConfigError(
            f"{start} reads layers {list(head.config.hidden_layers)}, but {recipe.method} trains heads on layers "
            f"{list(wanted.config.hidden_layers)}; name another head"
        )
    _check_decided(recipe, start, dict(_leaves(head.config)), dict(_leaves(wanted.config)))
    trained: torch.nn.Module = head.requires_grad_(True).train()
    return trained


def _check_decided(recipe: Recipe, start: Path, own: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a head that differs in something that the recipe sets."""
    options = {item.name for item in dataclasses.fields(recipe)}  # type: ignore[arg-type]
    for name, value in wanted.items():
        if name in _OWN or not hasattr(recipe, name) or own[name] == value:
            continue
        way_out = f"give --{name.replace('_', '-')} {own[name]}" if name in options else "train its own method"
        raise ConfigError(
            f"{start} is a head with {name} {own[name]}, but this training uses {value}; {way_out}, or leave out "
            "--start-from"
        )


def _leaves(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a configuration and its parts."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value)
        else:
            yield item.name, value
