"""Packed models on disk, so the next start reads them instead of packing again.

An entry is two files: the packed bytes as in memory, and facts about their source.  It is used only if the layout's
version, the quantization, every matrix's shape and the weight files' contents are unchanged, and the packed bytes are
intact.  A hash identifies a weight file's contents; the file is not read again while its size, times and inode are
unchanged.  The packed bytes have a checksum per piece, and several threads read the pieces, because most of the time
goes into allocating memory.

The bytes are read into huge pages and not mapped: a pass reads all of them, and small pages would slow it down.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from outrider.files import PARTIAL, replacing, write_whole

VARIABLE: Final = "OUTRIDER_PACKED"
LAYOUT_VERSION: Final = 2
"""Raise it with every change of the kernels' layout."""
LEAST_BYTES: Final = 1 << 26
"""Smaller models are packed again, which takes no time."""
MOST_BYTES: Final = 1 << 34
"""Maximum size of the folder; the least recently used entry goes first."""
_log: Final = logging.getLogger("outrider")
_CHUNK: Final = 1 << 24
_THREADS: Final = 4


def packed_folder() -> Path:
    """Folder of packed models: OUTRIDER_PACKED, else ~/.cache/outrider/packed."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "outrider" / "packed")


class PackedEntry:
    """The packed form of one model, identified by its weight files and its quantization."""

    def __init__(self, sources: Sequence[Path], quantization: str) -> None:
        self._sources, self._quantization = [source.resolve() for source in sources], quantization
        named = json.dumps([[str(source) for source in self._sources], quantization])
        stem = f"{self._sources[0].stem[:60]}-{hashlib.blake2b(named.encode(), digest_size=8).hexdigest()}"
        self._facts, self._bytes = packed_folder() / f"{stem}.json", packed_folder() / f"{stem}.packed"

    def read(self, layout: list[list[Any]], to: memoryview) -> bool:
        """Fill memory from the entry.

        Args:
            layout: name, kind, inputs, outputs, place and size of every matrix.
            to: the memory.

        Returns:
            Whether there was a valid entry; if not, the memory's contents are undefined.
        """
        try:
            facts = json.loads(self._facts.read_text(encoding="utf-8"))
            expected = {"version": LAYOUT_VERSION, "quantization": self._quantization, "layout": layout}
            if any(facts[key] != value for key, value in expected.items()) or not self._same_sources(facts):
                return False
            if self._bytes.stat().st_size != len(to):
                return False
            with ThreadPoolExecutor(_THREADS) as threads:
                found = list(threads.map(partial(_read_piece, self._bytes), _starts(to), _pieces(to)))
            if found != facts["checksums"]:
                return False
            self._facts.touch()
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # a damaged entry is no entry
            return False
        return True

    def write(self, layout: list[list[Any]], packed: memoryview) -> None:
        """Write packed bytes; if that fails, the next start packs again."""
        try:
            self._bytes.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._bytes, suffix=_own(), synced=False) as partial:
                with partial.open("wb") as file, ThreadPoolExecutor(1) as writer:
                    written = writer.submit(file.write, packed)
                    facts = {
                        "version": LAYOUT_VERSION,
                        "quantization": self._quantization,
                        "layout": layout,
                        "stamps": [_stamp(source) for source in self._sources],
                        "hashes": [_hash(source) for source in self._sources],
                        "checksums": [zlib.crc32(piece) for piece in _pieces(packed)],
                    }
                    written.result()
                self._facts.unlink(missing_ok=True)  # facts exist only beside their bytes
            self._write_facts(facts)
            _prune(packed_folder(), keep=self._facts)
        except OSError as error:
            _log.info("the packed model is not kept: %s", error)

    def _same_sources(self, facts: dict[str, Any]) -> bool:
        stamps = [_stamp(source) for source in self._sources]
        if stamps == facts["stamps"]:
            return True
        if [_hash(source) for source in self._sources] != facts["hashes"]:
            return False
        self._write_facts(facts | {"stamps": stamps})
        return True

    def _write_facts(self, facts: dict[str, Any]) -> None:
        write_whole(self._facts, json.dumps(facts), suffix=_own(), synced=False)


def _own() -> str:
    """Suffix of a partial file that no other process uses: several may pack the same model."""
    return f".{os.getpid()}{PARTIAL}"


def _starts(packed: memoryview) -> range:
    return range(0, len(packed), _CHUNK)


def _pieces(packed: memoryview) -> list[memoryview]:
    return [packed[start : start + _CHUNK] for start in _starts(packed)]


def _read_piece(path: Path, start: int, to: memoryview) -> int:
    """Fill memory from a file's bytes at an offset, and return their checksum."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        done = 0
        while done < len(to):
            count = file.readinto(to[done:])
            if not count:
                raise OSError("the file became shorter while it was read")
            done += count
    return zlib.crc32(to)


def _stamp(source: Path) -> list[int]:
    """Size, times and inode of a file, which change when it is written."""
    status = source.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _hash(source: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _prune(folder: Path, keep: Path) -> None:
    """Delete the least recently used entries until the folder is small enough."""
    entries = sorted(folder.glob("*.json"), key=lambda path: (path == keep, path.stat().st_mtime))
    sizes = {path: _size(path.with_suffix(".packed")) for path in entries}
    total = sum(sizes.values())
    for path in entries[:-1]:
        if total <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        path.with_suffix(".packed").unlink(missing_ok=True)
        total -= sizes[path]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
