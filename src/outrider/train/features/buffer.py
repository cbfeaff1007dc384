"""Captured hidden rows on disk, up to a number of bytes.

A folder of safetensors shards, and an index of their sizes, checksums and texts.  A shard is written under another
name, renamed, and then added to the index, so an interruption loses only what was still in memory.  Texts are read in
the order of their keys, not of their shards.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save

from outrider.errors import ConfigError, NumericsError, cause
from outrider.files import write_whole
from outrider.train.data.example import Example

SHARD_BYTES: Final = 1 << 26
_VERSION: Final = 1
_INDEX: Final = "index.json"
_LEFTOVERS: Final = "*.part*"
"""Unfinished files of an interruption, of earlier versions too."""
_HALF: Final = torch.finfo(torch.float16)
_CHUNK: Final = 1 << 22
_log: Final = logging.getLogger("outrider")


@dataclass(frozen=True, eq=False)
class Captured:
    """A text with the target's hidden rows."""

    tokens: torch.Tensor
    """int64 [T]"""
    answer_start: int
    features: Mapping[int, torch.Tensor]
    """fp16 [T, width] of each layer; layer i is the output of block i, the highest the input of the LM head."""

    @classmethod
    def of(cls, example: Example, features: Mapping[int, torch.Tensor]) -> Captured:
        """A text in the precision of the buffer."""
        tokens = torch.tensor(example.tokens, dtype=torch.int64)
        return cls(tokens, example.answer_start, {layer: halves(layer, rows) for layer, rows in features.items()})


class _StoredText(NamedTuple):
    """One text of a shard."""

    key: str
    length: int
    answer_start: int


@dataclass(frozen=True)
class _Shard:
    """One file in the index."""

    name: str
    size: int
    checksum: int
    texts: tuple[_StoredText, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.size, "crc32": self.checksum, "texts": self.texts}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> _Shard:
        return cls(value["name"], value["bytes"], value["crc32"], tuple(_StoredText(*text) for text in value["texts"]))


class FeatureBuffer:
    """Texts and their hidden rows in a folder, which may hold some already.

    Args:
        folder: created if missing.
        layers: layers of the hidden rows; the highest is after the final norm.
        width: width of a row.
        limit_bytes: most bytes of rows.
        target: name of the model.
        shard_bytes: size of one file.

    Raises:
        ConfigError: the folder has rows of other layers or another target, or cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        layers: Sequence[int],
        width: int,
        limit_bytes: int,
        *,
        target: str = "",
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.folder, self.layers, self.width, self.limit_bytes = folder, tuple(sorted(layers)), width, limit_bytes
        self._facts = {"version": _VERSION, "target": target, "layers": list(self.layers), "width": width}
        self._shard_bytes = min(shard_bytes, limit_bytes)
        self._shards: list[_Shard] = []
        self._pending: list[tuple[Example, Captured]] = []
        self._checked: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(_LEFTOVERS):
                leftover.unlink()
            self._shards = self._read_index()
        except OSError as error:
            raise ConfigError(f"the feature buffer {folder} cannot be used: {cause(error)}") from error
        self._drop(self._wrong_size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token."""
        return row_bytes(self.width, self.layers)

    @property
    def bytes(self) -> int:
        """Bytes of all rows, also those still in memory, without the shards' headers."""
        written = sum(text.length for shard in self._shards for text in shard.texts)
        return written * self.row_bytes + self._pending_bytes

    def has_room(self, example: Example) -> bool:
        """Whether a text fits."""
        return self.bytes + len(example.tokens) * self.row_bytes <= self.limit_bytes

    def append(self, example: Example, features: Mapping[int, torch.Tensor]) -> None:
        """Add a text; it is on disk once its shard is full or :meth:`flush` was called.

        Args:
            example: the text.
            features: [tokens, width] of each layer.

        Raises:
            ConfigError: the buffer or the disk is full.
            NumericsError: a row contains NaN.
        """
        if not self.has_room(example):
            raise ConfigError(
                f"the feature buffer {self.folder} is full: it has {self.bytes} of {self.limit_bytes} bytes; allow "
                "more, capture fewer layers, or train on fewer texts"
            )
        self._pending.append((example, Captured.of(example, {layer: features[layer] for layer in self.layers})))
        if self._pending_bytes >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the texts that are still in memory.

        Raises:
            ConfigError: the disk is full or cannot be written; earlier texts stay.
        """
        if not self._pending:
            return
        packed = save(self._tensors())
        texts = tuple(_StoredText(item.key, len(item.tokens), item.answer_start) for item, _ in self._pending)
        shard = _Shard(self._next_name(), len(packed), zlib.crc32(packed), texts)
        try:
            write_whole(self.folder / shard.name, packed)
            self._write_index([*self._shards, shard])
        except OSError as error:
            raise ConfigError(
                f"the feature buffer {self.folder} cannot be written ({error.strerror or error}); free "
                f"{len(packed) / 2**20:.0f} MiB or more there, or name a folder on another disk, and run the same "
                "command again, which keeps the rows so far"
            ) from error
        self._shards.append(shard)
        self._checked.add(shard.name)
        self._pending.clear()
        self._forget()

    def check(self) -> list[str]:
        """Read every shard once, drop the damaged ones, and return their names."""
        return self._drop(lambda shard: None if shard.name in self._checked else self._damage(shard))

    def clear(self) -> None:
        """Remove every text."""
        self._pending.clear()
        gone = self._shards
        self._shards = []
        self._forget()
        self._write_index([])
        for shard in gone:
            (self.folder / shard.name).unlink(missing_ok=True)

    def __contains__(self, example: object) -> bool:
        return isinstance(example, Example) and example.key in self.keys

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Captured]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Captured:
        """One written text, in the order of their keys.

        Raises:
            ConfigError: its shard is damaged.
        """
        text, shard, start = self._places[index]
        file, stop = self._open(shard), start + text.length
        return Captured(
            file.get_slice("tokens")[start:stop].long(),
            text.answer_start,
            {layer: file.get_slice(f"layer.{layer}")[start:stop] for layer in self.layers},
        )

    def text(self, example: Example) -> Captured | None:
        """A written text; None if it is not in the buffer.

        Raises:
            ConfigError: its shard is damaged.
        """
        index = self._numbers.get(example.key)
        return None if index is None else self[index]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Index of each written text, by its key."""
        return {text.key: index for index, (text, _, _) in enumerate(self._places)}

    @cached_property
    def _places(self) -> list[tuple[_StoredText, _Shard, int]]:
        """Each written text, its shard and its first row in it."""
        places = []
        for shard in self._shards:
            start = 0
            for text in shard.texts:
                places.append((text, shard, start))
                start += text.length
        return sorted(places, key=lambda place: place[0].key)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all texts, also those still in memory."""
        return self._written.union(example.key for example, _ in self._pending)

    @cached_property
    def _written(self) -> frozenset[str]:
        return frozenset(text.key for text, _, _ in self._places)

    @cached_property
    def _open_files(self) -> dict[str, Any]:
        return {}

    def _forget(self) -> None:
        """Clear everything cached from the list of shards."""
        for name in ("_places", "_numbers", "_written", "_open_files"):
            self.__dict__.pop(name, None)

    @property
    def _pending_bytes(self) -> int:
        return sum(len(example.tokens) for example, _ in self._pending) * self.row_bytes

    def _tensors(self) -> dict[str, torch.Tensor]:
        texts = [captured for _, captured in self._pending]
        tensors = {f"layer.{layer}": torch.cat([text.features[layer] for text in texts]) for layer in self.layers}
        return tensors | {"tokens": torch.cat([text.tokens for text in texts]).int()}

    def _next_name(self) -> str:
        last = max((int(shard.name.split(".")[0].split("-")[1]) for shard in self._shards), default=0)
        return f"shard-{last + 1:06d}.safetensors"

    def _open(self, shard: _Shard) -> Any:
        if shard.name not in self._open_files:
            reason = None if shard.name in self._checked else self._damage(shard)
            if reason is not None:
                raise ConfigError(
                    f"the shard {self.folder / shard.name} is damaged: {reason}; run the same command again to compute "
                    "its rows again"
                )
            self._open_files[shard.name] = safe_open(self.folder / shard.name, "pt")
        return self._open_files[shard.name]

    def _wrong_size(self, shard: _Shard) -> str | None:
        path = self.folder / shard.name
        size = path.stat().st_size if path.exists() else 0
        return None if size == shard.size else f"it has {size} bytes and should have {shard.size}"

    def _damage(self, shard: _Shard) -> str | None:
        """What is wrong with a shard; None if nothing is."""
        if (reason := self._wrong_size(shard)) is not None:
            return reason
        try:
            checksum = _checksum(self.folder / shard.name)
        except OSError as error:
            return f"it cannot be read ({error})"
        if checksum != shard.checksum:
            return f"its checksum is {checksum:08x} and should be {shard.checksum:08x}"
        self._checked.add(shard.name)
        return None

    def _drop(self, damage: Callable[[_Shard], str | None]) -> list[str]:
        reasons = {shard.name: damage(shard) for shard in self._shards}
        lost = [name for name, reason in reasons.items() if reason is not None]
        for name in lost:
            _log.warning("%s is damaged: %s; its texts are captured again", self.folder / name, reasons[name])
        if lost:
            self._shards = [shard for shard in self._shards if reasons[shard.name] is None]
            self._forget()
            self._write_index(self._shards)
            for name in lost:
                (self.folder / name).unlink(missing_ok=True)
        return lost

    def _read_index(self) -> list[_Shard]:
        path = self.folder / _INDEX
        if not path.exists():
            return []
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            shards = [_Shard.of(shard) for shard in value["shards"]]
        except (ValueError, KeyError, TypeError):
            _log.warning("%s is damaged; everything is captured again", path)
            return []
        for name, wanted in self._facts.items():
            if value.get(name) != wanted:
                raise ConfigError(
                    f"the feature buffer {self.folder} was made with {name} {value.get(name)!r}, not {wanted!r}; name "
                    "another folder, or delete this one"
                )
        return shards

    def _write_index(self, shards: Sequence[_Shard]) -> None:
        value = self._facts | {"shards": [shard.to_dict() for shard in shards]}
        write_whole(self.folder / _INDEX, json.dumps(value))


def row_bytes(width: int, layers: Sequence[int]) -> int:
    """Bytes of one token: its id, and a row of each layer."""
    return 4 + 2 * width * len(layers)


def halves(layer: int, rows: torch.Tensor) -> torch.Tensor:
    """Rows as fp16 on the CPU, clamped to its range.

    Raises:
        NumericsError: a row contains NaN.
    """
    half = rows.detach().clamp(_HALF.min, _HALF.max).to("cpu", torch.float16)
    if torch.isnan(half).any():
        raise NumericsError(f"the target's hidden rows of layer {layer} contain NaN, so nothing can be learned")
    return half


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            checksum = zlib.crc32(piece, checksum)
    return checksum
