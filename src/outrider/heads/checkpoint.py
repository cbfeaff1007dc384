"""A trained head on disk: a folder with ``config.json`` and ``model.safetensors``.

``config.json`` names the kind of head (a file of this package), its configuration, the target it was made for and how
it was trained.  :mod:`outrider.heads.loading` reads it, and translates formats of other projects into it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outrider.errors import ConfigError, ModelError, cause
from outrider.files import replacing
from outrider.heads.packed import from_stored, to_stored

VERSION: Final = 1
MARK: Final = "outrider_head"
"""The key of ``config.json`` that only this format has; its value is the version."""
CONFIG: Final = "config.json"
TENSORS: Final = "model.safetensors"


class _Target(Protocol):
    width: int
    layers: int
    vocabulary: int


@dataclass(frozen=True)
class TargetFacts:
    """What a head must know of its target; a number that is not known is 0."""

    name: str = ""
    width: int = 0
    layers: int = 0
    vocabulary: int = 0

    @classmethod
    def of(cls, target: _Target, name: str = "") -> TargetFacts:
        """The facts of a target."""
        return cls(name, target.width, target.layers, target.vocabulary)


@dataclass(frozen=True, eq=False)
class HeadCheckpoint:
    """A head's numbers, and what they mean."""

    kind: str
    """The file of this package that holds its network."""
    config: Any
    """The network's configuration, a frozen dataclass."""
    target: TargetFacts
    tensors: Mapping[str, torch.Tensor]
    training: Mapping[str, Any] = field(default_factory=dict)
    """How it was made, for people."""
    name: str = "the head"
    """For messages."""
    layers_of: Callable[[int], tuple[int, ...]] | None = None
    """Which layers are read of a target of so many, where only the target can tell; None is the configuration's."""

    def build(self) -> Any:
        """The network with these numbers, for inference.

        Raises:
            ModelError: the numbers are not those the configuration asks for.
        """
        if self.layers_of is not None:
            raise ConfigError(f"{self.name} does not say which layers it reads: only its target can tell")
        module = _parts(self.kind)[1](self.config)
        due, found = module.state_dict(), dict(self.tensors)
        for name, wanted in due.items():
            if name not in found:
                raise ModelError(f"{self.name}: its weights hold nothing for {name!r}")
            if found[name].shape != wanted.shape:
                raise ModelError(
                    f"{self.name}: {name!r} has the shape {list(found[name].shape)} where {list(wanted.shape)} is due"
                )
        if foreign := sorted(found.keys() - due.keys()):
            raise ModelError(f"{self.name}: its weights hold {foreign[0]!r}, for which the head has no place")
        module.load_state_dict(found)
        return module.eval().requires_grad_(False)

    def fitted(self, target: _Target) -> HeadCheckpoint:
        """The head for a target, which it must have been made for.

        Raises:
            ConfigError: naming what differs, with both values.
        """
        fitted = self
        if self.layers_of is not None:
            config = dataclasses.replace(self.config, hidden_layers=self.layers_of(target.layers))
            fitted = dataclasses.replace(self, config=config, layers_of=None)
        fitted.check_target(target)
        return fitted

    def check_target(self, target: _Target) -> None:
        """Refuse a target that the head was not made for.

        Raises:
            ConfigError: naming what differs, with both values.
        """
        for name in ("width", "layers", "vocabulary"):
            own, its = getattr(self.target, name), getattr(target, name)
            if own and own != its and not (name == "vocabulary" and own < its):
                raise ConfigError(
                    f"{self.name} was made for a target whose {_WORDS[name]} is {own}, and this one's is {its}"
                )
        for layer in self.config.hidden_layers:
            if not 0 <= layer <= target.layers:
                raise ConfigError(f"{self.name} reads layer {layer}, and the target has {target.layers}")


_GROUP: Final = 32
OWN: Final = "outrider"
"""What this format is called where heads are exported."""
PACKED: Final = {"": "Q8_0", "lm_head": "Q4_0", "markov_head.markov_w1": "Q4_0"}
"""Kinds in which a head is as small as it runs on the CPU kernels, see :func:`write_head`."""
SMALL: Final = {"": "Q4_0"}
"""Kinds in which a head is smallest."""
_WORDS: Final = {"width": "hidden size", "layers": "number of layers", "vocabulary": "vocabulary"}


def _parts(kind: str) -> tuple[type, type]:
    """Configuration and network of a kind of head."""
    module = import_module(f"outrider.heads.{kind}")
    return module.CONFIG, module.HEAD


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in one sentence that a folder cannot be written; what fails within is no one's fault but the disk's.

    Raises:
        ConfigError: naming the folder and the reason.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written ({error}); free some space there or name another folder, and run the same "
            "command again"
        ) from error


def write_head(folder: Path, checkpoint: HeadCheckpoint, kinds: Mapping[str, str] | None = None) -> None:
    """Write a head; the folder is made.

    Args:
        folder: where to.
        checkpoint: the head.
        kinds: in which blocks of a GGUF file matrices are kept, ``Q8_0`` or ``Q4_0``, by the beginnings of their names;
            the longest that fits holds, and what none fits stays as it is.

    Raises:
        ConfigError: there is no such kind, there are no kernels to make it, the folder cannot be written, or only the
            target can tell which layers the head reads, so that nothing could be written of them.
    """
    if checkpoint.layers_of is not None:
        raise ConfigError(
            f"{checkpoint.name} does not say which layers it reads, only its target can tell, and this format must; "
            "use the folder as it is, which loads by path"
        )
    told = {
        MARK: VERSION,
        "kind": checkpoint.kind,
        "config": dataclasses.asdict(checkpoint.config),
        "target": dataclasses.asdict(checkpoint.target),
        "training": dict(checkpoint.training),
    }
    write_files(folder, dict(_stored(checkpoint.tensors, kinds or {})), told)


def write_files(
    folder: Path, tensors: dict[str, torch.Tensor], told: Mapping[str, Any], marks: dict[str, str] | None = None
) -> None:
    """Write a head's two files; the folder is made, and weights that are there stay whole until the new ones are.

    Args:
        folder: where to.
        tensors: what ``model.safetensors`` holds.
        told: what ``config.json`` tells.
        marks: metadata of the tensors' file.

    Raises:
        ConfigError: the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / TENSORS, synced=False) as partial:
            save_file(tensors, partial, metadata=marks)
        (folder / CONFIG).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def read_own(place: Path, told: Mapping[str, Any]) -> HeadCheckpoint:
    """Read a head that :func:`write_head` has written.

    Args:
        place: its folder.
        told: its ``config.json``.

    Raises:
        ModelError: its files cannot be read; in one sentence.
    """
    if told.get(MARK) != VERSION:
        raise ModelError(f"{place.name}: {CONFIG} does not say that this is a head of version {VERSION}")
    try:
        config = from_plain(_parts(str(told["kind"]))[0], told["config"])
        target = from_plain(TargetFacts, told["target"])
    except (KeyError, TypeError, ModuleNotFoundError, AttributeError) as error:
        raise ModelError(f"{place.name}: {CONFIG} does not describe a head: {error}") from error
    tensors = dict(_restored(place.name, read_tensors(place / TENSORS)))
    return HeadCheckpoint(told["kind"], config, target, tensors, told.get("training", {}), place.name)


def _stored(tensors: Mapping[str, torch.Tensor], kinds: Mapping[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors as they are written: those in blocks have their kind and their number of columns in their names."""
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        fitting = [start for start in kinds if name.startswith(start)]
        if fitting and whole.ndim == 2 and whole.shape[1] % _GROUP == 0:
            kind = kinds[max(fitting, key=len)]
            yield f"{name}:{kind}:{whole.shape[1]}", to_stored(whole, kind)
        else:
            yield name, whole


def _restored(place: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for written, tensor in tensors.items():
        name, *how = written.split(":")
        if not how:
            yield name, widened(tensor)
            continue
        try:
            kind, columns = how
            yield name, from_stored(tensor, kind, int(columns), len(tensor))
        except (ValueError, ConfigError) as error:
            raise ModelError(f"{place}: {written!r} is not stored as its name says: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelError: there is none.
    """
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file.parent.name}: {file.name} cannot be read: {cause(error)}") from error
    if not isinstance(told, dict):
        raise ModelError(f"{file.parent.name}: {file.name} is not a JSON object")
    return told


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file.parent.name}: {file.name} cannot be read: {cause(error)}") from error


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Floats as fp32, whatever they were stored as."""
    return tensor.float() if tensor.is_floating_point() else tensor


def from_plain(kind: type, plain: Mapping[str, Any]) -> Any:
    """A frozen dataclass from what ``json`` makes of its ``asdict``.

    Raises:
        TypeError: a field is unknown or missing.
    """
    hints, values = get_type_hints(kind), {}
    for name, value in plain.items():
        wanted = hints.get(name)
        if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
            values[name] = from_plain(wanted, value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
