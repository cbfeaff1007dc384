"""Read and write heads in other projects' formats.

A format is one file in this package with a ``FORMAT``.  It translates weight names, configuration and layer numbers to
ours and back, without building a network.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ConfigError, ModelError
from outrider.heads.checkpoint import HeadCheckpoint, write_files
from outrider.heads.formats._untrusted_config import UntrustedConfig
from outrider.heads.formats._weight_files import WeightFiles


@dataclass(frozen=True, eq=False)
class Source:
    """A folder in a format of another project."""

    name: str
    told: UntrustedConfig
    """Its ``config.json``."""
    files: WeightFiles


@dataclass(frozen=True, eq=False)
class Exported:
    """A head in a format of another project, before it is written."""

    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    left_out: tuple[str, ...] = ()
    """For people: what the format cannot hold, and a reader does not need."""


@dataclass(frozen=True)
class Format:
    """How another project stores one kind of head."""

    title: str
    recognises: Callable[[Mapping[str, Any], Collection[str]], bool]
    """Whether a configuration and its weights' names are in this format."""
    read: Callable[[Source], HeadCheckpoint]
    kind: str = ""
    """The kind of head that can be written; empty if none can."""
    exported_as: tuple[str, ...] = ()
    """Names of the format for export."""
    write: Callable[[HeadCheckpoint, str], Exported] | None = None
    """Takes the head and the name of the format."""


@cache
def formats() -> tuple[Format, ...]:
    """All formats."""
    from outrider.heads import formats as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    own = sorted(name for name in names if name != "base" and not name.startswith("_"))
    return tuple(importlib.import_module(f"{package.__name__}.{name}").FORMAT for name in own)


def read_foreign(folder: Path, told: Mapping[str, Any]) -> HeadCheckpoint:
    """Read a head in another project's format, from its folder and its ``config.json``.

    Raises:
        ModelError: its format is not known, or its files do not fit the format.
    """
    files = WeightFiles(folder)
    for each in formats():
        if each.recognises(told, files.names):
            return each.read(Source(folder.name, UntrustedConfig(folder.name, told), files))
    if kind := told.get("model_type"):
        raise ModelError(
            f"{folder.name} is a whole model of the type {kind!r} and no head; engines that read transformers' folders "
            "can load it"
        )
    titles = ", ".join(each.title for each in formats())
    raise ModelError(f"{folder.name} holds a head in an unknown format; known are Outrider's own, {titles}")


def destinations() -> list[str]:
    """Names of the formats that heads can be exported to."""
    return sorted({name for each in formats() for name in each.exported_as})


def export(checkpoint: HeadCheckpoint, to: str, folder: Path) -> Exported:
    """Write a head in another project's format; the folder is created.

    Raises:
        ConfigError: there is no such format, it cannot hold the head, or the folder cannot be written.
    """
    if to not in destinations():
        raise ConfigError(f"there is no format {to!r} to export to; there are: {', '.join(destinations())}")
    fitting = [each for each in formats() if to in each.exported_as and each.kind == checkpoint.kind and each.write]
    if not fitting:
        raise ConfigError(f"{checkpoint.name} is a head of the kind {checkpoint.kind}, which {to} has no format for")
    checkpoint.build()
    made = fitting[0].write(checkpoint, to)  # type: ignore[misc]
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in made.tensors.items()}
    write_files(folder, tensors, made.config, {"format": "pt"})  # readers built on transformers look for this mark
    return made
