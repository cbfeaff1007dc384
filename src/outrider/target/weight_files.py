"""Which files of a folder are a model's weights: those that transformers reads, and no others; and their tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open

from outrider.errors import ModelError, one_line

EMBEDDING: Final = "model.embed_tokens.weight"
OUTPUT_LAYER: Final = "lm_head.weight"
_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_ROWS_AT_ONCE: Final = 1024
_OPTION: Final = "transformers_weights"
"""Option of ``config.json`` that names a file, or an index, to be read instead."""
_OTHERS_FIRST: Final = (
    (re.compile(r"adapter_config\.json"), "an adapter; merge it into the weights first"),
    (re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors"), "a part of a distributed checkpoint; join it first"),
)
"""Files that transformers puts before the weights or on top of them, depending on what is installed; what they are."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder, in the order in which a later one's tensors replace an earlier one's.

    As in transformers: the file or index that ``config.json`` names, else ``model.safetensors``, else the files of its
    index.  Whatever else lies there plays no part.

    Raises:
        ModelError: there are none, or a file is named that is not there.
    """
    for pattern, what in _OTHERS_FIRST:
        if found := sorted(file.name for file in folder.iterdir() if pattern.fullmatch(file.name)):
            raise ModelError(f"{folder.name}: {found[0]} is {what}")
    config = _read_object(folder, "config.json")
    named = config.get(_OPTION)
    if named is not None:
        if not isinstance(named, str):
            raise ModelError(f"{folder.name}: the {_OPTION} of its config.json must be a file's name, not {named!r}")
        return _files(folder, named)
    for name in (_WHOLE, _INDEX):
        if (folder / name).is_file():
            return _files(folder, name)
    strays = sorted(file.name for file in folder.glob("*.safetensors"))
    hint = f"; {strays[0]} is read only if an index names it" if strays else ""
    raise ModelError(f"{folder.name}: the folder holds no .safetensors weights: neither {_WHOLE} nor {_INDEX}{hint}")


def _files(folder: Path, name: str) -> tuple[Path, ...]:
    """The file of a name, or the files that an index of that name lists."""
    names = [name] if not name.endswith(".index.json") else _listed(folder, name)
    for each in names:
        if not each.endswith(".safetensors"):
            raise ModelError(f"{folder.name}: {each!r} is named as a weight file and is no .safetensors file")
        if Path(each).is_absolute() or ".." in Path(each).parts:
            raise ModelError(f"{folder.name}: the weight file {each!r} lies outside of the folder")
        if not (folder / each).is_file():
            raise ModelError(f"{folder.name}: the weight file {each!r} is not there; fetch the model again")
    return tuple(folder / each for each in names)


def _listed(folder: Path, name: str) -> list[str]:
    homes = _read_object(folder, name).get("weight_map")
    if not isinstance(homes, dict) or not homes or not all(isinstance(home, str) for home in homes.values()):
        raise ModelError(f"{folder.name}: {name} must map the tensors' names to files in its weight_map")
    return sorted(set(homes.values()))


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    try:
        read = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder.name}: its {name} cannot be used: {one_line(error)}") from error
    if not isinstance(read, dict):
        raise ModelError(f"{folder.name}: its {name} cannot be used: it holds no object")
    return read


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library's errors have no common base, and some are torch's
        raise ModelError(f"{file.name}: cannot be read: {one_line(error)}") from error


class MappedTensors(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files, read from the mapped file when they are asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._homes: dict[str, Any] = {}
        for file in files:
            with _readable(file):
                opened: Any = safe_open(file, framework="pt")
            self._homes |= dict.fromkeys(opened.keys(), (file, opened))

    def __getitem__(self, name: str) -> torch.Tensor:
        file, opened = self._homes[name]
        with _readable(file):
            tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._homes  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


def equal_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers, to fp32; a few rows of them are in memory at a time."""
    if one.shape != other.shape or one.ndim == 0 or one.is_complex() or other.is_complex():
        return False
    pairs = zip(one.split(_ROWS_AT_ONCE), other.split(_ROWS_AT_ONCE), strict=True)
    return all(torch.equal(left.float(), right.float()) for left, right in pairs)
