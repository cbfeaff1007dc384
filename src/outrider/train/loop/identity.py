"""What a training is recognised by, so that it is never gone on with as another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from outrider.errors import TrainingError
from outrider.train.recipes.base import Recipe
from outrider.train.settings import Settings

FREE: Final = frozenset({"save_seconds", "patience", "judgements", "precision", "start_from"})
"""Settings that decide no step of a training in another way than it began: when its state is kept, when it is judged
and how soon it stops.  The precision is compared once it was chosen, the head to start from by its weights."""
SHAPES: Final = "shapes of the weights"
_OLDER: Final = {"head's shapes": SHAPES}
"""Names that older states have for the same."""
_WAYS: Final = {
    "tokens": "the learning rate falls over all of them, so none can be added; go on from its weights with "
    "--start-from {head} and another --output",
    SHAPES: "go on with the same --vocabulary and sizes, or name another --output",
}
"""Ways out that are not to give the same again."""
_SAME: Final = "go on with the same options, or choose another folder with --output"


def identity(recipe: Recipe, settings: Settings, facts: Mapping[str, object]) -> dict[str, object]:
    """What decides the weights of a training.

    Args:
        recipe: what is trained.
        settings: of the loop.
        facts: what else decides.
    """
    options = dataclasses.asdict(settings) | dataclasses.asdict(recipe)  # type: ignore[call-overload]
    return {name: value for name, value in options.items() if name not in FREE} | {"recipe": recipe.method, **facts}


def check_identity(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, object], recipe: Recipe, *, whole: bool = True
) -> None:
    """Refuse a state that was written under other options.

    Args:
        folder: the training's.
        before: what the state was written under.  What it does not name is older than the option: that stood at its
            default, and whatever is no option is as it is now.
        now: see :func:`identity`.
        recipe: what is trained.
        whole: whether ``now`` names everything that decides; otherwise only what it names is compared.

    Raises:
        TrainingError: naming the first that differs.
    """
    older = {_OLDER.get(name, name): value for name, value in before.items() if name not in FREE}
    known = dict(now) | {name: value for name, value in _defaults(recipe).items() if name in now} | older
    for name in sorted(known.keys() | now.keys() if whole else now.keys()):
        if known.get(name) != now.get(name):
            ways = _WAYS if recipe.product.starts_from_heads else {}
            way = ways.get(name, _SAME).format(head=folder.parent)
            raise TrainingError(_differs(folder, name, known.get(name), now.get(name), way, _defaults(recipe)))


def check_precision(folder: Path, before: str, wanted: str, automatic: str) -> None:
    """Refuse to go on in another precision than was chosen; an automatic choice takes what is there.

    Raises:
        TrainingError: naming both.
    """
    if before and wanted not in (automatic, before):
        raise TrainingError(_differs(folder, "precision", before, wanted, _SAME, {"precision"}))


def _differs(folder: Path, name: str, before: object, now: object, way: str, options: Collection[str]) -> str:
    if isinstance(before, Mapping) or isinstance(now, Mapping):
        return f"{folder} holds a training with other {name}; {way}"
    told = f"--{name.replace('_', '-')}" if name in options else f"{name} ="
    return f"{folder} holds a training with {told} {before}, not {now}; {way}"


def _defaults(recipe: Recipe) -> dict[str, object]:
    """What the options of a training stand for where they are not given."""
    kinds: tuple[Any, ...] = (Settings, recipe)
    return {item.name: item.default for kind in kinds for item in dataclasses.fields(kind)}
