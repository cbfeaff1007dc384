"""A trained head on disk: a folder with ``config.json`` and ``model.safetensors``.

``config.json`` holds the kind of head (a file of this package), its configuration, its target and its training.
:mod:`outrider.heads.loading` also reads formats of other projects.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outrider.errors import ConfigError, ModelError, cause
from outrider.files import replacing
from outrider.heads.packed_linear import from_stored, to_stored
from outrider.models.base import TargetModel

VERSION: Final = 1
MARK: Final = "outrider_head"
"""The key of ``config.json`` that marks this format; its value is the version."""
CONFIG: Final = "config.json"
TENSORS: Final = "model.safetensors"


@dataclass(frozen=True)
class TargetFacts:
    """What a head knows of its target; an unknown number is 0."""

    name: str = ""
    width: int = 0
    layers: int = 0
    vocabulary: int = 0

    @classmethod
    def of(cls, target: TargetModel, name: str = "") -> TargetFacts:
        """Collect the facts of a target."""
        return cls(name, target.width, target.layers, target.vocabulary)


@dataclass(frozen=True, eq=False)
class HeadCheckpoint:
    """A head's weights, configuration and target."""

    kind: str
    """Name of its network's file in this package."""
    config: Any
    """The network's configuration, a frozen dataclass."""
    target: TargetFacts
    tensors: Mapping[str, torch.Tensor]
    training: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained, for people."""
    name: str = "the head"
    """Name for messages."""
    layers_of: Callable[[int], tuple[int, ...]] | None = None
    """Computes the layers to read from the target's number of layers; None uses the configuration's."""

    def build(self) -> Any:
        """Build the network with these weights, for inference.

        Raises:
            ModelError: the weights do not fit the configuration.
        """
        if self.layers_of is not None:
            raise ConfigError(f"{self.name} does not say which layers it reads: only its target can tell")
        module = _parts(self.kind)[1](self.config)
        due, found = module.state_dict(), dict(self.tensors)
        for name, wanted in due.items():
            if name not in found:
                raise ModelError(f"{self.name}: its weights do not contain {name!r}")
            if found[name].shape != wanted.shape:
                raise ModelError(
                    f"{self.name}: {name!r} has the shape {list(found[name].shape)} instead of {list(wanted.shape)}"
                )
        if foreign := sorted(found.keys() - due.keys()):
            raise ModelError(f"{self.name}: its weights hold {foreign[0]!r}, for which the head has no place")
        module.load_state_dict(found)
        return module.eval().requires_grad_(False)

    def fitted(self, target: TargetModel) -> HeadCheckpoint:
        """Fit the head to its target.

        Raises:
            ConfigError: it was made for another target; the message names the difference.
        """
        fitted = self
        if self.layers_of is not None:
            config = dataclasses.replace(self.config, hidden_layers=self.layers_of(target.layers))
            fitted = dataclasses.replace(self, config=config, layers_of=None)
        fitted.check_target(target)
        return fitted

    def check_target(self, target: TargetModel) -> None:
        """Refuse a target that the head was not made for; see :meth:`fitted`."""
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
"""Name of this format for export."""
PACKED: Final = {"": "Q8_0", "lm_head": "Q4_0", "markov_head.markov_w1": "Q4_0"}
"""Kinds for :func:`write_head` that the CPU kernels run a head in by default."""
SMALL: Final = {"": "Q4_0"}
"""Kinds for the smallest file."""
_WORDS: Final = {"width": "hidden size", "layers": "number of layers", "vocabulary": "vocabulary"}


def _parts(kind: str) -> tuple[type, type]:
    """Configuration and network of a kind of head."""
    module = import_module(f"outrider.heads.{kind}")
    return module.CONFIG, module.HEAD


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a ConfigError that names the folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written ({error}); free some space there or name another folder, and run the same "
            "command again"
        ) from error


def write_head(folder: Path, checkpoint: HeadCheckpoint, kinds: Mapping[str, str] | None = None) -> None:
    """Write a head to a folder, which is created.

    ``kinds`` maps prefixes of matrices' names to GGUF kinds, ``Q8_0`` or ``Q4_0``; the longest prefix wins, and other
    matrices stay unchanged.

    Raises:
        ConfigError: there is no such kind, there are no kernels for it, the folder cannot be written, or the layers
            that the head reads are known only with a target.
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
    """Write ``config.json`` and ``model.safetensors``, with metadata ``marks``; the folder is created.

    Old weights stay until the new ones are complete.

    Raises:
        ConfigError: the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / TENSORS, synced=False) as partial:
            save_file(tensors, partial, metadata=marks)
        (folder / CONFIG).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def read_own(place: Path, told: Mapping[str, Any]) -> HeadCheckpoint:
    """Read a head that :func:`write_head` wrote, from its folder and its ``config.json``.

    Raises:
        ModelError: its files cannot be read.
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
    """Tensors to write; the names of those in blocks hold kind and number of columns."""
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
    """Read a JSON object from a file.

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
    """Read all tensors of a safetensors file.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file.parent.name}: {file.name} cannot be read: {cause(error)}") from error


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Convert floats to fp32."""
    return tensor.float() if tensor.is_floating_point() else tensor


def from_plain(kind: type, plain: Mapping[str, Any]) -> Any:
    """Make a frozen dataclass from the JSON form of its ``asdict``.

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
