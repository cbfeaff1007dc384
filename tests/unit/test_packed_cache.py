"""The packed cache: used when nothing has changed, and never otherwise."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import FUZZ, patched
from hypothesis import given
from hypothesis import strategies as st

from outrider.kernels.native import cpu, missing
from outrider.models.native import packed_cache
from outrider.models.native import packed_weights as native_weights
from outrider.models.native.packed_cache import PackedEntry
from outrider.models.native.packed_weights import StoredMatrix, pack_all

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


def entry(folder: Path) -> tuple[Path, Path]:
    """The facts and the bytes of the only entry."""
    (facts,), (packed,) = (list((folder / "packed").glob(f"*.{end}")) for end in ("json", "packed"))
    return facts, packed


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "cut": lambda facts, packed: packed.write_bytes(packed.read_bytes()[:-1]),
    "longer": lambda facts, packed: packed.write_bytes(packed.read_bytes() + b"x"),
    "empty": lambda facts, packed: packed.write_bytes(b""),
    "no bytes": lambda facts, packed: packed.unlink(),
    "zeros": lambda facts, packed: packed.write_bytes(bytes(packed.stat().st_size)),
    "one bit": lambda facts, packed: packed.write_bytes(flipped(packed.read_bytes(), 8 * 4000 + 3)),
    "garbage": lambda facts, packed: facts.write_text("{"),
    "not UTF-8": lambda facts, packed: facts.write_bytes(b"\xff\xfe"),
    "a list": lambda facts, packed: facts.write_text("[1]"),
    "a deep list": lambda facts, packed: facts.write_text("[" * 100_000),
    "no facts": lambda facts, packed: facts.unlink(),
    "other version": lambda facts, packed: rewrite(facts, version=0),
    "other checksum": lambda facts, packed: rewrite(facts, checksums=[1]),
    "no checksum": lambda facts, packed: rewrite(facts, checksums=None),
    "other source": lambda facts, packed: rewrite(facts, stamps=[[1, 2, 3, 4]], hashes=["0"]),
    "stamps of another type": lambda facts, packed: rewrite(facts, stamps=7, hashes=7),
}


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def rewrite(facts: Path, **values: object) -> None:
    facts.write_text(json.dumps(json.loads(facts.read_text()) | values))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_no_entry(folder: Path, damage: Callable[[Path, Path], object]) -> None:
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    damage(*entry(folder))
    assert model.load() == first
    assert model.reads == 4, "packed anew"
    assert model.load() == first
    assert model.reads == 4, "and kept"


def test_an_entry_of_another_model_is_no_entry(folder: Path) -> None:
    other = Model(folder / "other.gguf").write(2)
    other.load()
    foreign = [path.read_bytes() for path in entry(folder)]
    shutil.rmtree(folder / "packed")
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    for kept, content in zip(entry(folder), foreign, strict=True):
        kept.write_bytes(content)
    assert model.load() == first
    assert model.reads == 4


@FUZZ
@given(data=st.data())
def test_no_damage_changes_a_model(folder: Path, data: st.DataObject) -> None:
    """Patches and cuts anywhere in either file: the next start gets the same bytes, whether packed or read."""
    model = Model(folder / "m.gguf").write(1)
    first = model.load()
    which, length = data.draw(st.sampled_from([(0, 240), (1, 8192)]))  # at least as long as that
    spoiled = entry(folder)[which]
    content = patched(data, spoiled.read_bytes(), [(0, length - 8)])
    spoiled.write_bytes(content[: data.draw(st.one_of(st.none(), st.integers(0, length)))])
    assert model.load() == first


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
