"""Weights of the native backend: read from GGUF, safetensors or memory, and repacked for the kernels.

A source gives matrices in their stored bits and widens nothing, so loading needs little more memory than the packed
model.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import torch

from outrider.errors import ConfigError, ModelError
from outrider.kernels.native import cpu
from outrider.models.files.dequantize import TENSOR_KINDS, dequantize
from outrider.models.files.gguf import GGUFFile
from outrider.models.files.gguf_config import ModelPlan, check_tensors
from outrider.models.files.weight_files import OUTPUT_LAYER, tell_unread
from outrider.models.native.packed_cache import LEAST_BYTES, PackedEntry

ALIGNMENT: Final = 4096
_BODY: Final = "model."
"""Prefix of all parameters' names but the output layer's."""
_COMPUTED: Final = "rotary_emb.inv_freq"
"""Constants in older checkpoints, which every model computes."""
_PLAIN_KINDS: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_KINDS: Final = {kind.name: kind for kind in TENSOR_KINDS.values()}
Bytes = np.ndarray[Any, Any]


class Quantization(enum.Enum):
    """Quantizations of weights at load."""

    NONE = "none"
    """Keep the file's own bits."""
    W8 = "w8"
    W4 = "w4"

    @classmethod
    def named(cls, name: str) -> Quantization:
        """Find a quantization by name.

        Raises:
            ConfigError: there is none; the message lists all.
        """
        try:
            return cls(name)
        except ValueError:
            raise ConfigError(
                f"there is no quantization {name!r}; there are: {', '.join(q.value for q in cls)}"
            ) from None


_QUANTIZED_KIND: Final = {Quantization.NONE: None, Quantization.W8: "Q8_0", Quantization.W4: "Q4_0"}


@dataclass(frozen=True)
class StoredMatrix:
    """A weight matrix as stored; its bytes are read only for packing."""

    kind: str
    inputs: int
    outputs: int
    raw: Callable[[], Bytes]
    """Reads the stored rows: uint8, flat, in order."""
    order: Bytes | None = None
    """int64 [outputs], the stored row of each output; None keeps the order."""
    release: Callable[[], None] = lambda: None
    """Frees the memory of the stored rows, after packing."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of its rows."""
        kind = _KINDS[self.kind]
        return self.outputs * self.inputs // kind.block_elements * kind.block_bytes

    def part(self, rows: slice) -> StoredMatrix:
        """The matrix of some of its outputs."""
        if rows == slice(0, self.outputs):
            return self
        assert self.order is None, "no family fuses matrices whose rows lie in another order"
        each = self.stored_bytes // self.outputs
        return replace(
            self,
            outputs=rows.stop - rows.start,
            raw=lambda: self.raw()[each * rows.start : each * rows.stop],
        )


class WeightSource(Protocol):
    """A model's weights under transformers' parameter names."""

    def check(self, due: Mapping[str, tuple[int, ...]]) -> None:
        """Check the weights against the shapes of all parameters, before any is read.

        Raises:
            ModelError: a parameter is missing, or has another shape or a kind without kernels.
        """
        ...

    def matrix(self, name: str) -> StoredMatrix:
        """A two-dimensional parameter that was checked."""
        ...

    def vector(self, name: str) -> Bytes:
        """A one-dimensional parameter that was checked, as fp32."""
        ...


class GGUFWeights:
    """The tensors of a GGUF file."""

    def __init__(self, file: GGUFFile, plan: ModelPlan) -> None:
        self._file, self._plan = file, plan
        self._tensors = {parameter: file.tensors[name] for name, parameter in plan.parameters.items()}

    def check(self, due: Mapping[str, tuple[int, ...]]) -> None:
        check_tensors(self._file, self._plan, due)

    def matrix(self, name: str) -> StoredMatrix:
        tensor = self._tensors[name]
        order = self._plan.row_orders.get(tensor.name)
        outputs, inputs = tensor.shape
        return StoredMatrix(
            tensor.kind.name,
            inputs,
            outputs,
            lambda: self._file.raw(tensor).flatten().numpy(),
            None if order is None else order.numpy(),
            lambda: self._file.release(tensor),
        )

    def vector(self, name: str) -> Bytes:
        tensor = self._tensors[name]
        job = self._file.job(tensor, torch.float32, self._plan.row_orders.get(tensor.name))
        dequantize([job])
        return job.out.numpy()


class TensorWeights:
    """Tensors in memory or in mapped files, by parameter name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], name: str = "the model") -> None:
        self._tensors, self._name = tensors, name

    def check(self, due: Mapping[str, tuple[int, ...]]) -> None:
        absent = [name for name in due if name not in self._tensors]
        if absent:
            raise ModelError(f"{self._name}: its weights do not contain the model's {', '.join(absent[:3])}")
        for name, shape in due.items():
            # transformers accepts names with and without the prefix; of two, it takes the first
            for other in {_BODY + name, name.removeprefix(_BODY)} - {name}:
                if other in self._tensors:
                    raise ModelError(f"{self._name}: its weights hold {name!r} twice, the other time as {other!r}")
            tensor = self._tensors[name]
            if tensor.dtype not in _PLAIN_KINDS:
                raise ModelError(
                    f"{self._name}: {name!r} has the precision {tensor.dtype}, for which there are no kernels"
                )
            if tuple(tensor.shape) != shape:
                raise ModelError(f"{self._name}: {name!r} has the shape {list(tensor.shape)} instead of {list(shape)}")
        unread = self._tensors.keys() - due.keys() - {OUTPUT_LAYER}  # an equal output layer is tied
        tell_unread(self._name, sorted(name for name in unread if not name.endswith(_COMPUTED)))

    def matrix(self, name: str) -> StoredMatrix:
        tensor = self._tensors[name]
        outputs, inputs = tensor.shape
        return StoredMatrix(
            _PLAIN_KINDS[tensor.dtype],
            inputs,
            outputs,
            lambda: tensor.detach().contiguous().view(torch.uint8).flatten().numpy(),
        )

    def vector(self, name: str) -> Bytes:
        return self._tensors[name].detach().float().contiguous().numpy()


class RequantizedWeights:
    """Another source's matrices in fewer bits, for drafters: that changes the speed and never the text."""

    def __init__(self, source: WeightSource, quantization: Quantization) -> None:
        self._source, self._kind = source, _QUANTIZED_KIND[quantization]

    def check(self, due: Mapping[str, tuple[int, ...]]) -> None:
        self._source.check(due)

    def matrix(self, name: str) -> StoredMatrix:
        stored = self._source.matrix(name)
        return stored if self._kind is None or stored.kind == self._kind else quantized(stored, self._kind)

    def vector(self, name: str) -> Bytes:
        return self._source.vector(name)


def quantized(stored: StoredMatrix, kind: str) -> StoredMatrix:
    """Convert a matrix to another kind; one whose rows are no multiple of 32 stays as it is."""
    if stored.inputs % 32:
        return stored
    wanted = StoredMatrix(kind, stored.inputs, stored.outputs, lambda: raw(), release=stored.release)

    def raw() -> Bytes:
        made = np.empty(wanted.stored_bytes, dtype=np.uint8)
        cpu.requantize(stored.kind, kind, stored.inputs, stored.outputs, stored.raw(), stored.order, made)
        return made

    return wanted


def stored_matrix(weight: torch.Tensor, kind: str | None = None) -> StoredMatrix:
    """A matrix in memory, [outputs, inputs]: fp32, or of a ``kind`` as in :func:`quantized`."""
    outputs, inputs = weight.shape

    def raw() -> Bytes:
        return weight.detach().float().contiguous().view(torch.uint8).flatten().numpy()

    stored = StoredMatrix("F32", inputs, outputs, raw)
    return stored if kind is None else quantized(stored, kind)


class Arena:
    """One zeroed block of memory for a whole model, in huge pages if the system has them."""

    def __init__(self, size: int) -> None:
        # Shared anonymous memory, Python's default, gets no huge pages.
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        self._map = mmap.mmap(-1, max(size, ALIGNMENT), **private)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)

    @property
    def view(self) -> memoryview:
        """The whole block."""
        return memoryview(self._map)

    def piece(self, start: int, size: int) -> Bytes:
        """A part of the block, uint8."""
        return self.bytes[start : start + size]


def pack_all(matrices: Mapping[str, StoredMatrix], kept: PackedEntry | None = None) -> tuple[dict[str, Any], Arena]:
    """Pack matrices into one arena, in order, so a pass reads its weights front to back.

    ``kept`` is the packed form on disk, to read or, if the model is large enough, to write.

    Returns:
        The kernels' matrices by name, and their memory.
    """
    layout, start = [], 0
    for name, stored in matrices.items():
        size = cpu.packed_bytes(stored.kind, stored.inputs, stored.outputs)
        layout.append([name, stored.kind, stored.inputs, stored.outputs, start, size])
        start += -(-size // ALIGNMENT) * ALIGNMENT
    arena = Arena(start)
    if start < LEAST_BYTES or kept is None or not kept.read(layout, arena.view):
        arena = Arena(start)  # drops what was read from a damaged entry
        for name, kind, inputs, outputs, place, size in layout:
            stored = matrices[name]
            cpu.pack(kind, inputs, outputs, stored.raw(), stored.order, arena.piece(place, size))
            stored.release()
        if start >= LEAST_BYTES and kept is not None:
            kept.write(layout, arena.view)
    packed = {
        name: cpu.Matrix(kind, inputs, outputs, arena.piece(place, size))
        for name, kind, inputs, outputs, place, size in layout
    }
    return packed, arena
