"""Resuming a killed training: its state on disk, and the check that its options are the same."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from outrider.errors import TrainingError
from outrider.train.recipes.base import Recipe
from outrider.train.saving import saving
from outrider.train.settings import AUTO, Settings

TRAINING: Final = "training"
"""Folder of a training's state and records, inside the folder of the trained network."""
STATE: Final = "state.pt"
BEST: Final = "best.pt"
FREE: Final = frozenset({"save_seconds", "patience", "judgements", "precision", "start_from"})
"""Settings that may change when a training resumes, because they do not affect steps.  The chosen precision and the
weights of the head to start from are compared separately."""
SHAPES: Final = "shapes of the weights"
_OLDER: Final = {"head's shapes": SHAPES}
"""Names in states of earlier versions."""
_WAYS: Final = {
    "tokens": "the learning rate schedule depends on them, so none can be added; continue from its weights with "
    "--start-from {head} and another --output",
    SHAPES: "continue with the same --vocabulary and sizes, or name another --output",
}
"""What to do about a changed option, if not :data:`_SAME`."""
_SAME: Final = "continue with the same options, or choose another folder with --output"


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state of tensors and plain values.

    Raises:
        TrainingError: the disk is full, or the folder cannot be written.
    """
    with saving(path) as file:
        torch.save(dict(state), file)


def load_state(path: Path) -> dict[str, Any] | None:
    """Read a state; None if there is none.

    Raises:
        TrainingError: the file is damaged.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError("it holds something else")
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        raise TrainingError(f"{path} is damaged ({reason}); remove it to start again") from error
    return state


def load_best(folder: Path, evaluation: int, name: str, *, or_later: bool = False) -> Mapping[str, torch.Tensor]:
    """Read the best weights so far.

    Args:
        folder: the training's folder.
        evaluation: the number of their evaluation.
        name: their :func:`fingerprint`; empty in a state of an earlier version.
        or_later: accept weights of a later evaluation, which a resumed training reaches again.

    Raises:
        TrainingError: the file does not have these weights.
    """
    path = folder / BEST
    if (kept := load_state(path)) is not None:
        later = or_later and kept["judgement"] > evaluation
        if later or (kept["judgement"] == evaluation and name in ("", fingerprint(kept["head"]))):
            weights: Mapping[str, torch.Tensor] = kept["head"]
            return weights
    raise TrainingError(
        f"{path} does not hold the best weights of the training in {STATE}; restore the right file, or remove "
        f"{folder} and train again"
    )


def fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """A hash of weights."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def identity(recipe: Recipe, settings: Settings, facts: Mapping[str, object]) -> dict[str, object]:
    """Everything that determines the weights of a training.

    Args:
        recipe: the method and its options.
        settings: options of the loop.
        facts: everything else, such as the texts.
    """
    options = dataclasses.asdict(settings) | dataclasses.asdict(recipe)  # type: ignore[call-overload]
    return {name: value for name, value in options.items() if name not in FREE} | {"recipe": recipe.method, **facts}


def check_identity(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, object], recipe: Recipe, *, whole: bool = True
) -> None:
    """Refuse to resume a training that started with other options.

    Args:
        folder: the training's folder.
        before: the identity in the state.  An option that it lacks is newer than the state and had its default; other
            missing facts are unchanged.
        now: see :func:`identity`.
        recipe: the method and its options.
        whole: whether ``now`` is complete; otherwise only its entries are compared.

    Raises:
        TrainingError: something differs; the message names it.
    """
    older = {_OLDER.get(name, name): value for name, value in before.items() if name not in FREE}
    known = dict(now) | {name: value for name, value in _defaults(recipe).items() if name in now} | older
    for name in sorted(known.keys() | now.keys() if whole else now.keys()):
        if known.get(name) != now.get(name):
            ways = _WAYS if recipe.product.starts_from_heads else {}
            way = ways.get(name, _SAME).format(head=folder.parent)
            raise TrainingError(_difference(folder, name, known.get(name), now.get(name), way, _defaults(recipe)))


def check_precision(folder: Path, before: str, wanted: str) -> None:
    """Refuse to resume in another precision; ``auto`` takes the earlier one.

    Raises:
        TrainingError: the precision differs.
    """
    if before and wanted not in (AUTO, before):
        raise TrainingError(_difference(folder, "precision", before, wanted, _SAME, {"precision"}))


def _difference(folder: Path, name: str, before: object, now: object, way: str, options: Collection[str]) -> str:
    if isinstance(before, Mapping) or isinstance(now, Mapping):
        return f"{folder} holds a training with other {name}; {way}"
    option = f"--{name.replace('_', '-')}" if name in options else f"{name} ="
    return f"{folder} holds a training with {option} {before}, not {now}; {way}"


def _defaults(recipe: Recipe) -> dict[str, object]:
    """The defaults of all options of a training."""
    kinds: tuple[Any, ...] = (Settings, recipe)
    return {item.name: item.default for kind in kinds for item in dataclasses.fields(kind)}
