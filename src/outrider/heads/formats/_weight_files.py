"""Weight files of other projects: safetensors or pickled, whole or in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from outrider.errors import ModelError
from outrider.heads.checkpoint import read_json, widened

_WHOLE: Final = (
    "model.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
)
_INDEXED: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_USELESS: Final = "rotary_emb.inv_freq"
"""Stored by old writers; computed from the configuration instead."""


class WeightFiles:
    """The weights in a head's folder; from safetensors, only the requested ones are read.

    Raises:
        ModelError: there are none, or their names cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[Path, dict[str, torch.Tensor]] = {}
        self._where = self._found()

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the weights."""
        return frozenset(name for name in self._where if not name.endswith(_USELESS))

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Read some weights, floats as fp32.

        Raises:
            ModelError: a file cannot be read.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._where[name], []).append(name)
        return {
            name: widened(tensor) for file, some in by_file.items() for name, tensor in self._read(file, some).items()
        }

    def _found(self) -> dict[str, Path]:
        for name in _INDEXED:
            if (self._folder / name).is_file():
                return self._by_index(self._folder / name)
        for name in _WHOLE:
            if (file := self._folder / name).is_file():
                return dict.fromkeys(self._names(file), file)
        raise ModelError(f"{self._folder.name} holds no weights: none of {', '.join((*_WHOLE, *_INDEXED))}")

    def _by_index(self, file: Path) -> dict[str, Path]:
        places = read_json(file).get("weight_map")
        if not isinstance(places, dict) or not all(
            isinstance(place, str) and Path(place).name == place for place in places.values()
        ):
            raise ModelError(f"{self._folder.name}: {file.name} does not say which file holds which weight")
        return {name: self._folder / place for name, place in places.items()}

    def _names(self, file: Path) -> list[str]:
        if file.suffix != ".safetensors":
            return list(self._unpickled(file))
        try:
            with safe_open(file, framework="pt") as opened:
                return list(opened.keys())
        except (OSError, SafetensorError) as error:
            raise self._unreadable(file, error) from error

    def _read(self, file: Path, names: list[str]) -> Mapping[str, torch.Tensor]:
        if file.suffix != ".safetensors":
            held = self._unpickled(file)
            if missing := next((name for name in names if name not in held), None):
                raise ModelError(f"{self._folder.name}: {file.name} does not hold {missing!r}")
            return {name: held[name] for name in names}
        try:
            with safe_open(file, framework="pt") as opened:
                return {name: opened.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise self._unreadable(file, error) from error

    def _unpickled(self, file: Path) -> dict[str, torch.Tensor]:
        if file not in self._whole:
            try:
                held: Any = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # a broken pickle may raise anything
                raise self._unreadable(file, error) from error
            if not isinstance(held, dict) or not all(
                isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in held.items()
            ):
                raise ModelError(f"{self._folder.name}: {file.name} is no table of weights")
            self._whole[file] = held
        return self._whole[file]

    def _unreadable(self, file: Path, error: Exception) -> ModelError:
        lines = str(error).splitlines()
        said = lines[0] if lines else type(error).__name__
        return ModelError(f"{self._folder.name}: {file.name} cannot be read: {said}")
