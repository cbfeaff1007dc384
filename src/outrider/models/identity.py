"""Recognise a model in a file of any format and precision.

Quantization leaves vectors (norms, biases) unchanged, so their digest identifies a training.  Adapters merged into
matrices leave vectors unchanged, too, so a block of every matrix is compared as well.  A quantised block bounds each
original weight; it is another model if more of its weights are out of bounds than rounding explains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from outrider.errors import ModelError, cause
from outrider.models.files.dequantize import DequantizeJob, dequantize
from outrider.models.files.gguf import GGUFFile, GGUFTensor, read_gguf
from outrider.models.files.gguf_config import plan_model

_BLOCK: Final = 32
"""Weights to compare per matrix: one block of the coarse kinds of GGUF, part of one of the others."""
_GROUP: Final = 16
"""Weights that share a scale in every kind of GGUF."""
_MOST_OUTSIDE: Final = 0.01
"""Maximum share of weights out of bounds, for one kind of matrix.  The same model has at most 0.4 % (Q4_0, whose
largest value is clipped); an adapter that moves weights by 2 % of their spread has 2 to 3 %, by 5 % 7 to 11 %."""
_SCALES: Final = 0.02
"""Steps that a value may be out of bounds because scales are rounded to fp16."""
_ROUNDING: Final = 2.0**-8
"""Relative rounding of bfloat16, times two."""
_FINER: Final = 4
"""A file can tell its model from others if its steps are smaller than the other file's by this factor."""


class _Weights(Protocol):
    """A model on disk that reads single pieces; parameters have transformers' names without ``model.``."""

    shapes: Mapping[str, Sequence[int]]

    def vector(self, name: str) -> Tensor:
        """A whole vector, fp32."""
        ...

    def block(self, name: str, row: int, column: int, width: int) -> tuple[Tensor, Tensor]:
        """Part of a row, fp32, and the step between neighbouring values there, 0 for floats."""
        ...


@dataclass(frozen=True, eq=False)
class Identity:
    """What distinguishes a model from others of the same shape."""

    vectors: tuple[str, ...]
    digest: str
    """SHA-256 of all vectors as fp32, in the order of their names."""
    matrices: tuple[str, ...]
    blocks: Tensor
    """A block of each matrix, fp32 [matrices, width]."""
    steps: Tensor
    """Step between neighbouring values there, fp32 [matrices, width]."""

    def write(self, file: Path) -> None:
        """Write it to a safetensors file."""
        told = {"vectors": json.dumps(self.vectors), "digest": self.digest, "matrices": json.dumps(self.matrices)}
        file.write_bytes(save({"blocks": self.blocks, "steps": self.steps}, metadata=told))


def read_identity(file: Path) -> Identity:
    """Read what :meth:`Identity.write` wrote.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            told = opened.metadata() or {}
            vectors, matrices = (tuple(json.loads(told[key])) for key in ("vectors", "matrices"))
            return Identity(vectors, told["digest"], matrices, opened.get_tensor("blocks"), opened.get_tensor("steps"))
    except Exception as error:  # safetensors raises errors of its own, json and the lookups theirs
        raise ModelError(f"{file}: does not say which model it is of: {error}") from error


def identify(path: Path) -> Identity:
    """Compute the identity of a model's folder or GGUF file.

    Raises:
        ModelError: it cannot be read.
    """
    weights = _open(path)
    vectors = tuple(sorted(name for name, shape in weights.shapes.items() if len(shape) == 1))
    matrices = tuple(sorted(name for name, shape in weights.shapes.items() if len(shape) == 2))
    blocks, steps = _blocks(weights, matrices, _width(weights, matrices))
    return Identity(vectors, _digest(weights, vectors), matrices, blocks, steps)


def is_same_model(path: Path, known: Identity) -> bool:
    """Whether a folder or GGUF file certainly holds a known model; False also if that is unclear.

    A file quantised as coarsely as the known one, but differently, cannot be told from a model that an adapter changed
    a little.

    Raises:
        ModelError: the file cannot be read.
    """
    weights = _open(path)
    ranks = dict.fromkeys(known.vectors, 1) | dict.fromkeys(known.matrices, 2)
    if any(len(weights.shapes.get(name, ())) != rank for name, rank in ranks.items()):
        return False
    if _width(weights, known.matrices) != known.blocks.shape[1] or _digest(weights, known.vectors) != known.digest:
        return False
    blocks, steps = _blocks(weights, known.matrices, known.blocks.shape[1])
    if torch.equal(blocks, known.blocks):
        return True
    if steps.sum() * _FINER > known.steps.sum() > 0:
        return False
    bounds = (0.5 + _SCALES) * (steps + known.steps) + _ROUNDING * blocks.abs()
    outside = ((blocks - known.blocks).abs() > bounds).float().mean(dim=1)
    return all(outside[rows].mean() <= _MOST_OUTSIDE for rows in _kinds(known.matrices))


def _kinds(matrices: Sequence[str]) -> Iterator[list[int]]:
    """Indices of matrices grouped by name without the layer: an adapter may change only one kind."""
    kinds: dict[str, list[int]] = {}
    for place, name in enumerate(matrices):
        kinds.setdefault(".".join(part for part in name.split(".") if not part.isdigit()), []).append(place)
    yield from kinds.values()


def _width(weights: _Weights, matrices: Sequence[str]) -> int:
    return min((_BLOCK, *(weights.shapes[name][1] for name in matrices)))


def _digest(weights: _Weights, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(weights.vector(name).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _blocks(weights: _Weights, names: Sequence[str], width: int) -> tuple[Tensor, Tensor]:
    """One block of each matrix, at a place that follows from its name and shape, and the steps there."""
    found = []
    for name in names:
        rows, columns = weights.shapes[name]
        place = crc32(name.encode())
        found.append(weights.block(name, place % rows, place % (columns // width) * width, width))
    if not found:
        return torch.empty(0, width), torch.empty(0, width)
    return torch.stack([block for block, _ in found]), torch.stack([step for _, step in found])


def _open(path: Path) -> _Weights:
    return _FileWeights(path) if path.is_file() else _FolderWeights(path)


def _canonical(name: str) -> str:
    return name.removeprefix("model.")


class _FileWeights:
    """A GGUF file."""

    def __init__(self, path: Path) -> None:
        self._file: GGUFFile = read_gguf(path)
        plan = plan_model(self._file)
        self._tensors: dict[str, GGUFTensor] = {
            _canonical(parameter): self._file.tensors[name] for name, parameter in plan.parameters.items()
        }
        self._orders = plan.row_orders
        self.shapes: Mapping[str, Sequence[int]] = {name: tensor.shape for name, tensor in self._tensors.items()}

    def vector(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        job = self._file.job(tensor, torch.float32, self._orders.get(tensor.name))
        dequantize([job])
        return job.out

    def block(self, name: str, row: int, column: int, width: int) -> tuple[Tensor, Tensor]:
        tensor = self._tensors[name]
        order = self._orders.get(tensor.name)
        stored = self._file.raw(tensor)[row if order is None else int(order[row])]
        kind = tensor.kind
        first, last = column // kind.block_elements, (column + width - 1) // kind.block_elements + 1
        raw = stored[first * kind.block_bytes : last * kind.block_bytes].contiguous()
        job = DequantizeJob(raw, kind, torch.empty((last - first) * kind.block_elements))
        dequantize([job])
        start = column - first * kind.block_elements
        values = job.out[start : start + width].clone()
        return values, torch.zeros(width) if kind.block_elements == 1 else _steps(values)


class _FolderWeights:
    """A folder of safetensors files: those of its index, or all."""

    def __init__(self, path: Path) -> None:
        self._homes: dict[str, tuple[Any, str]] = {}
        try:
            for file in _weight_files(path):
                opened: Any = safe_open(file, framework="pt")
                self._homes |= {_canonical(name): (opened, name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        except Exception as error:  # damaged files raise their library's own errors
            raise ModelError(f"{path.name}: cannot be read: {cause(error)}") from error
        self.shapes: Mapping[str, Sequence[int]] = {
            name: opened.get_slice(stored).get_shape() for name, (opened, stored) in self._homes.items()
        }

    def vector(self, name: str) -> Tensor:
        opened, stored = self._homes[name]
        whole: Tensor = opened.get_tensor(stored)
        return whole.float()

    def block(self, name: str, row: int, column: int, width: int) -> tuple[Tensor, Tensor]:
        opened, stored = self._homes[name]
        part: Tensor = opened.get_slice(stored)[row : row + 1, column : column + width]
        return part[0].float(), torch.zeros(width)


def _weight_files(path: Path) -> Sequence[Path]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(path.glob("*.safetensors"))
    told = json.loads(index.read_text(encoding="utf-8"))
    return [path / name for name in sorted(set(told["weight_map"].values()))]


def _steps(values: Tensor) -> Tensor:
    """The smallest gap between two values of each group with one scale, at every value of the group."""
    steps = []
    for group in values.split(_GROUP):
        gaps = group.unique().diff()
        steps.append((gaps.min() if len(gaps) else torch.tensor(0.0)).expand(len(group)))
    return torch.cat(steps)
