"""Read a GGUF file: its metadata, and views of its tensors' bytes without copies.

All sizes in the file are checked against its length before use, so a damaged or hostile file ends in one `ModelError`,
never in a crash or a huge allocation.
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from outrider.errors import ModelError, cause
from outrider.models.files.tensor_kinds import TENSOR_KINDS, TensorKind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.models.files.dequantize import DequantizeJob

Value = int | float | bool | str | list[str] | array  # type: ignore[type-arg]

T = TypeVar("T")

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_SMALLEST_ENTRY = 13  # name length 8, value type 4, value 1
_SMALLEST_TENSOR = 32  # name length 8, dimension count 4, one dimension 8, type 4, offset 8
_BOOL, _STRING, _ARRAY = 7, 8, 9
# Metadata value type id -> struct letter, which is also the letter of `array`.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GGUFTensor:
    """Place of one tensor in the file; `shape` is in torch's order, the outermost dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: TensorKind
    offset: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """One parsed file: metadata by key, tensors by name, and the mapped bytes (private to this process)."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, GGUFTensor]
    data: mmap.mmap

    def fail(self, problem: str) -> ModelError:
        """Make the error that names this file."""
        return ModelError(f"{self.path.name}: {problem}")

    def raw(self, tensor: GGUFTensor) -> Tensor:
        """View a tensor's stored bytes: [rows, bytes per row] uint8, one row for a one-dimensional tensor."""
        import torch  # takes seconds, which reading a header need not wait for

        flat = torch.frombuffer(self.data, dtype=torch.uint8, count=tensor.size, offset=tensor.offset)
        return flat.view(math.prod(tensor.shape[:-1]), -1)

    def release(self, tensor: GGUFTensor) -> None:
        """Free the memory of a tensor's bytes; the next access reads them from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.size - start)

    def job(self, tensor: GGUFTensor, dtype: torch.dtype, order: Tensor | None = None) -> DequantizeJob:
        """Prepare the dequantisation of a tensor into new memory, `out` of the returned job.

        Args:
            tensor: one of `self.tensors`.
            dtype: fp32, bf16 or fp16.
            order: stored row of each wanted row, [rows] int64; None keeps the order.
        """
        import torch  # likewise

        from outrider.models.files.dequantize import DequantizeJob

        raw = self.raw(tensor)
        if order is not None:
            raw = raw.view(len(order), -1).index_select(0, order)
        return DequantizeJob(raw, tensor.kind, torch.empty(tensor.shape, dtype=dtype))

    def text(self, key: str, default: str | None = None) -> str:
        """Look up a string; a missing one without a default, or another type, is an error."""
        return self._typed(key, default, str, "a string")

    def integer(self, key: str, default: int | None = None) -> int:
        """Look up an integer; a missing one without a default, or another type, is an error."""
        return self._typed(key, default, int, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        """Look up a finite fraction; a missing one without a default, or anything else, is an error."""
        number = self._typed(key, default, float, "a number")
        if not math.isfinite(number):
            raise self.fail(f"the metadata's {key!r} is {number}; it must be finite")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """Look up a boolean; another type is an error."""
        return self._typed(key, default, bool, "true or false")

    def texts(self, key: str) -> list[str]:
        """Look up a list of strings; a missing one or another type is an error."""
        return self._typed(key, None, list, "a list of strings")

    def numbers(self, key: str) -> array[int]:
        """Look up a list of numbers; a missing one or another type is an error."""
        return self._typed(key, None, array, "a list of numbers")

    def _typed(self, key: str, default: T | None, kind: type[T], what: str) -> T:
        value = self.metadata.get(key, default)
        if value is None:
            raise self.fail(f"the metadata has no {key!r}")
        if type(value) is not kind:
            raise self.fail(f"the metadata's {key!r} should be {what}, not {type(value).__name__}")
        return value


def read_gguf(path: Path) -> GGUFFile:
    """Parse the header of a GGUF file and map its tensors.

    Raises:
        ModelError: the file is not GGUF, is damaged or cut off, or holds a tensor kind that cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.name}: cannot be opened: {cause(error)}") from error
    return _Parser(path, data).parse()


class _Parser:
    """Reads the header; every `take` is first checked against the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def fail(self, problem: str) -> ModelError:
        return ModelError(f"{self.path.name}: {problem}")

    def parse(self) -> GGUFFile:
        if self.take(4, "the magic number") != _MAGIC:
            raise self.fail("is not a GGUF file")
        (version,) = self.unpack("I", "the version")
        if version not in _VERSIONS:
            raise self.fail(
                f"has GGUF version {version}; little-endian files of version {_VERSIONS[0]} or {_VERSIONS[1]} "
                "can be read"
            )
        tensor_count, entry_count = self.unpack("QQ", "the counts")
        self.check_room(tensor_count, _SMALLEST_TENSOR, "tensors")
        self.check_room(entry_count, _SMALLEST_ENTRY, "metadata entries")
        metadata = self.metadata(entry_count)
        headers = [self.tensor_header() for _ in range(tensor_count)]
        return GGUFFile(self.path, metadata, self.place(headers, metadata), self.data)

    def take(self, length: int, what: str) -> bytes:
        """Return the next `length` bytes."""
        self.check_room(length, 1, f"bytes of {what}")
        self.position += length
        return self.data[self.position - length : self.position]

    def check_room(self, count: int, each: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold."""
        left = len(self.data) - self.position
        if count * each > left:
            raise self.fail(f"is damaged or cut off: {count} {what} cannot fit in the remaining {left} bytes")

    def unpack(self, letters: str, what: str) -> tuple[int, ...]:
        """Read little-endian numbers."""
        layout = struct.Struct(f"<{letters}")
        return layout.unpack(self.take(layout.size, what))

    def string(self, what: str) -> str:
        (length,) = self.unpack("Q", what)
        return self.decode(self.take(length, what), what)

    def decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not valid UTF-8") from error

    def metadata(self, count: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        for _ in range(count):
            key = self.string("a metadata key")
            if key in entries:
                raise self.fail(f"the metadata names {key!r} twice")
            (kind,) = self.unpack("I", f"the type of {key!r}")
            entries[key] = self.value(kind, key)
        return entries

    def value(self, kind: int, key: str) -> Value:
        if kind in _NUMBERS:
            (number,) = self.unpack(_NUMBERS[kind], repr(key))
            return bool(number) if kind == _BOOL else number
        if kind == _STRING:
            return self.string(repr(key))
        if kind == _ARRAY:
            return self.sequence(key)
        raise self.fail(f"the metadata's {key!r} has the unknown value type {kind}")

    def sequence(self, key: str) -> Value:
        (kind,) = self.unpack("I", f"the item type of {key!r}")
        (count,) = self.unpack("Q", f"the length of {key!r}")
        if kind == _STRING:
            return self.strings(count, key)
        if kind not in _NUMBERS:
            raise self.fail(f"the metadata's {key!r} is a list of the unsupported value type {kind}")
        values = array(_NUMBERS[kind])
        self.check_room(count, values.itemsize, f"items of {key!r}")
        values.frombytes(self.take(count * values.itemsize, repr(key)))
        return values

    def strings(self, count: int, key: str) -> list[str]:
        """Read many strings; the only loop here whose time is noticeable (300 thousand rounds for Qwen)."""
        self.check_room(count, 8, f"strings of {key!r}")
        data, end, start = self.data, len(self.data), self.position
        length_at = struct.Struct("<Q").unpack_from
        found: list[bytes] = []
        for _ in range(count):
            if start + 8 > end or (stop := start + 8 + length_at(data, start)[0]) > end:
                raise self.fail(f"is damaged or cut off: {key!r} holds a string longer than the file")
            found.append(data[start + 8 : stop])
            start = stop
        self.position = start
        return [self.decode(raw, f"a string of {key!r}") for raw in found]

    def tensor_header(self) -> tuple[str, tuple[int, ...], TensorKind, int]:
        """Read one entry of the tensor list: name, shape, kind and offset from the start of the data."""
        name = self.string("a tensor name")
        (dimensions,) = self.unpack("I", f"the shape of {name!r}")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {dimensions} dimensions; 1 to {_MOST_DIMENSIONS} can be read")
        shape = self.unpack("Q" * dimensions, f"the shape of {name!r}")[::-1]
        (kind_id,) = self.unpack("I", f"the type of {name!r}")
        (offset,) = self.unpack("Q", f"the offset of {name!r}")
        kind = TENSOR_KINDS.get(kind_id)
        if kind is None:
            raise self.fail(f"tensor {name!r} has the kind {kind_name(kind_id)}, which cannot be read yet")
        if min(shape) < 1 or shape[-1] % kind.block_elements:
            raise self.fail(f"tensor {name!r} of kind {kind.name} has the impossible shape {list(shape)}")
        return name, shape, kind, offset

    def place(
        self, headers: list[tuple[str, tuple[int, ...], TensorKind, int]], metadata: dict[str, Value]
    ) -> dict[str, GGUFTensor]:
        """Make offsets absolute; tensors must be aligned, inside the file and apart."""
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            raise self.fail(f"general.alignment is {alignment!r}; it must be a power of two from 8 up")
        base = -(-self.position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in headers:
            size = math.prod(shape) // kind.block_elements * kind.block_bytes
            if offset % alignment or base + offset + size > len(self.data):
                raise self.fail(f"is damaged or cut off: tensor {name!r} lies past the end or unaligned")
            if name in tensors:
                raise self.fail(f"holds tensor {name!r} twice")
            tensors[name] = GGUFTensor(name, shape, kind, base + offset, size)
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.size > after.offset:
                raise self.fail(f"tensors {before.name!r} and {after.name!r} overlap")
        return tensors


def kind_name(kind_id: int) -> str:
    """Name a tensor type id as the format's own tools do."""
    from gguf.constants import GGMLQuantizationType  # slow to import, and needed for this one message only

    try:
        return str(GGMLQuantizationType(kind_id).name)
    except ValueError:
        return f"number {kind_id}"
