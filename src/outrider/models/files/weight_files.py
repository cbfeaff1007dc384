"""The weight files of a folder, exactly those that transformers reads, and their tensors."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open

from outrider.errors import ModelError, one_line

_log: Final = logging.getLogger("outrider")
_EMBEDDING: Final = "model.embed_tokens.weight"
OUTPUT_LAYER: Final = "lm_head.weight"
_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_ROWS_AT_ONCE: Final = 1024
"""Rows of large matrices to compare at once."""
_OPTION: Final = "transformers_weights"
"""Option of ``config.json`` that names another file or index."""
_OTHERS_FIRST: Final = (
    (re.compile(r"adapter_config\.json"), "an adapter; merge it into the weights first"),
    (re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors"), "a part of a distributed checkpoint; join it first"),
)
"""Files that transformers may read before or in addition to the weights, with what they are."""


def weight_files(folder: Path, model: str) -> tuple[Path, ...]:
    """List the safetensors files of a folder with a ``config.json``; tensors of later files replace earlier ones.

    As in transformers: the file or index that ``config.json`` names, else ``model.safetensors``, else the files of its
    index.  Other files are ignored.

    Raises:
        ModelError: there are none, or a named file does not exist.
    """
    for pattern, what in _OTHERS_FIRST:
        if found := sorted(file.name for file in folder.iterdir() if pattern.fullmatch(file.name)):
            raise ModelError(f"{model}: {found[0]} is {what}")
    config = _read_object(folder, "config.json", model)
    named = config.get(_OPTION)
    if named is not None:
        if not isinstance(named, str):
            raise ModelError(f"{model}: the {_OPTION} of its config.json must be a file's name, not {named!r}")
        return _files(folder, named, model)
    for name in (_WHOLE, _INDEX):
        if (folder / name).is_file():
            return _files(folder, name, model)
    strays = sorted(file.name for file in folder.glob("*.safetensors"))
    hint = f"; {strays[0]} is read only if an index names it" if strays else ""
    raise ModelError(f"{model}: the folder holds no .safetensors weights: neither {_WHOLE} nor {_INDEX}{hint}")


def _files(folder: Path, name: str, model: str) -> tuple[Path, ...]:
    """The file with this name, or the files in the index with this name."""
    names = [name] if not name.endswith(".index.json") else _listed(folder, name, model)
    for each in names:
        if not each.endswith(".safetensors"):
            raise ModelError(f"{model}: {each!r} is named as a weight file but is no .safetensors file")
        if Path(each).is_absolute() or ".." in Path(each).parts:
            raise ModelError(f"{model}: the weight file {each!r} lies outside of the folder")
        if not (folder / each).is_file():
            raise ModelError(f"{model}: the weight file {each!r} is not there; fetch the model again")
    return tuple(folder / each for each in names)


def _listed(folder: Path, name: str, model: str) -> list[str]:
    homes = _read_object(folder, name, model).get("weight_map")
    if not isinstance(homes, dict) or not homes or not all(isinstance(home, str) for home in homes.values()):
        raise ModelError(f"{model}: {name} must map the tensors' names to files in its weight_map")
    return sorted(set(homes.values()))


def _read_object(folder: Path, name: str, model: str) -> dict[str, Any]:
    try:
        read = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{model}: its {name} cannot be used: {one_line(error)}") from error
    if not isinstance(read, dict):
        raise ModelError(f"{model}: its {name} cannot be used: it holds no object")
    return read


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library's errors have no common base, and some are torch's
        raise ModelError(f"{file.name}: cannot be read: {one_line(error)}") from error


class MappedTensors(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files, read from the mapped file on access."""

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


def has_own_output_layer(files: Sequence[Path]) -> bool:
    """Whether the files hold an output layer that differs from the embedding."""
    tensors = MappedTensors(files)
    if not {_EMBEDDING, OUTPUT_LAYER} <= tensors.keys():
        return False
    one, other = tensors[_EMBEDDING], tensors[OUTPUT_LAYER]
    if one.shape != other.shape or one.ndim == 0 or one.is_complex() or other.is_complex():
        return True
    pairs = zip(one.split(_ROWS_AT_ONCE), other.split(_ROWS_AT_ONCE), strict=True)
    return not all(torch.equal(left.float(), right.float()) for left, right in pairs)


def tell_unread(model: str, names: Sequence[str]) -> None:
    """Warn about tensors without a parameter in the model, as transformers does."""
    if names:
        some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        _log.warning("%s: %d of its tensors have no place in the model and are not read: %s", model, len(names), some)
