"""The packed cache: used when nothing has changed, and never otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.kernels.native import cpu, missing
from outrider.target import native_weights, packed_cache
from outrider.target.native_weights import StoredMatrix, pack_all
from outrider.target.packed_cache import PackedEntry

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(packed_cache.VARIABLE, str(tmp_path / "packed"))
    monkeypatch.setattr(native_weights, "LEAST_BYTES", 1)
    return tmp_path


class Model:
    """Two matrices whose bytes are a file's, and how often they were read."""

    def __init__(self, path: Path) -> None:
        self.path, self.reads = path, 0

    def write(self, seed: int) -> Model:
        self.path.write_bytes(np.random.default_rng(seed).integers(0, 60, 2 * 34 * 64, dtype=np.uint8).tobytes())
        return self

    def load(self, quantization: str = "none", outputs: int = 64) -> bytes:
        def raw() -> Any:
            self.reads += 1
            return np.fromfile(self.path, dtype=np.uint8)[: outputs * 34]

        matrices = {name: StoredMatrix("Q8_0", 32, outputs, raw) for name in ("a", "b")}
        _, arena = pack_all(matrices, PackedEntry([self.path], quantization))
        return bytes(arena.bytes)


def test_the_second_start_reads_what_the_first_has_packed(folder: Path) -> None:
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    assert model.reads == 2
    assert model.load() == first
    assert model.reads == 2


def test_a_file_that_was_only_touched_is_recognised_by_its_hash(folder: Path) -> None:
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    os.utime(model.path, (1, 1))
    assert model.load() == first
    assert model.reads == 2


def test_another_content_shape_or_quantization_is_packed_anew(folder: Path) -> None:
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    status = model.path.stat()
    model.write(2)
    os.utime(model.path, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size and times: the hash must tell
    assert model.load() != first
    assert model.reads == 4
    model.load(outputs=32)
    assert model.reads == 6
    model.load("w8")
    assert model.reads == 8


@pytest.mark.parametrize("damage", ["cut", "garbage", "no facts", "other version"])
def test_a_damaged_entry_is_no_entry(folder: Path, damage: str) -> None:
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    (facts,), (packed,) = (list((folder / "packed").glob(f"*.{end}")) for end in ("json", "packed"))
    if damage == "cut":
        packed.write_bytes(packed.read_bytes()[:-1])
    elif damage == "garbage":
        facts.write_text("{")
    elif damage == "no facts":
        facts.unlink()
    else:
        facts.write_text(facts.read_text().replace(f'"version": {packed_cache.LAYOUT_VERSION}', '"version": 0'))
    assert model.load() == first
    assert model.reads == 4
    assert model.load() == first
    assert model.reads == 4


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(folder: Path) -> None:
    (folder / "packed").write_text("in the way")
    model = Model(folder / "m.gguf").write(1)
    assert model.load() == model.load()


def test_the_folder_stays_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cache, "MOST_BYTES", 20_000)
    for number in range(6):
        Model(folder / f"m{number}.gguf").write(number).load()
    kept = sorted(path.name[:2] for path in (folder / "packed").glob("*.packed"))
    assert "m5" in kept
    assert sum(path.stat().st_size for path in (folder / "packed").glob("*.packed")) <= 20_000
