"""Reading GGUF: what is in the file comes out, and nothing a file says can do harm."""

from __future__ import annotations

import mmap
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from damage import FUZZ, patched
from gguf_files import TinyFile, entry, raw_file, tensor_entry
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ModelError
from outrider.models.files.dequantize import dequantize
from outrider.models.files.gguf import read_gguf
from outrider.models.files.gguf_config import plan_model
from outrider.models.files.gguf_tokenizer import build_tokenizer

STRING, ARRAY = 8, 9


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="this system cannot give mapped memory back")
def test_memory_that_is_given_back_is_read_again(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "large.gguf", "llama")
    values = np.arange(1 << 22, dtype=np.float32).reshape(-1, 1024)
    for name in ("a", "b"):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "large.gguf")
    wanted = torch.from_numpy(values).view(torch.uint8)
    for tensor in file.tensors.values():
        before = resident()
        assert torch.equal(file.raw(tensor), wanted)
        assert resident() > before + tensor.size // 2
        file.release(tensor)
        assert resident() < before + tensor.size // 4
    assert torch.equal(file.raw(file.tensors["a"]), wanted)


def resident() -> int:
    """Bytes of mapped files that are in this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return TinyFile().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def test_every_value_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "llama")
    numbers = {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4_000_000_000, "int32": -2,
        "uint64": 2**63 + 1, "int64": -(2**62), "float32": 1.5, "float64": 0.1, "bool": True, "string": "héllo",
    }  # fmt: skip
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_array("strings", ["a", "", "ශ්‍රී"])
    writer.add_array("floats", [1.0, 2.5])
    writer.add_array("integers", [-1, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    file = read_gguf(tmp_path / "all.gguf")
    for kind, value in numbers.items():
        assert file.metadata[kind] == value
        assert type(file.metadata[kind]) is type(value)
    assert file.texts("strings") == ["a", "", "ශ්‍රී"]
    assert list(file.numbers("floats")) == [1.0, 2.5]
    assert list(file.numbers("integers")) == [-1, 2]


def test_tensors_have_torch_order_and_their_values(tmp_path: Path) -> None:
    values = np.arange(6 * 32, dtype=np.float32).reshape(2, 3, 32)
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("a", values)
    writer.add_tensor("b", values[0, 0].astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "t.gguf")
    jobs = {name: file.job(tensor, torch.float32) for name, tensor in file.tensors.items()}
    dequantize(list(jobs.values()))
    assert torch.equal(jobs["a"].out, torch.from_numpy(values))
    assert torch.equal(jobs["b"].out, torch.arange(32.0))
    assert file.raw(file.tensors["a"]).shape == (6, 128)


def test_reading_changes_nothing_in_the_file(tmp_path: Path, tiny_bytes: bytes) -> None:
    path = write(tmp_path, tiny_bytes)
    file = read_gguf(path)
    file.raw(next(iter(file.tensors.values()))).fill_(7)
    assert path.read_bytes() == tiny_bytes


VECTOR = tensor_entry("v", (32,), 0, 0)
WRONG = {
    "empty": (b"", "cannot be opened"),
    "other file": (b"PK\3\4" + bytes(60), "is not a GGUF file"),
    "version 1": (raw_file(version=1), "GGUF version 1"),
    "big-endian": (raw_file(version=3 << 24), "little-endian"),
    "2^60 tensors": (raw_file(counts=(2**60, 0)), "1152921504606846976 tensors cannot fit"),
    "2^60 entries": (raw_file(counts=(0, 2**60)), "metadata entries cannot fit"),
    "long key": (raw_file([u64(2**40) + bytes(40)]), "metadata key cannot fit"),
    "long string": (raw_file([entry("k", STRING, u64(2**40) + bytes(20))]), "'k' cannot fit"),
    "long array": (raw_file([entry("k", ARRAY, u32(0) + u64(2**40))]), "items of 'k' cannot fit"),
    "many strings": (raw_file([entry("k", ARRAY, u32(8) + u64(2**40))]), "strings of 'k' cannot fit"),
    "string past the end": (raw_file([entry("k", ARRAY, u32(8) + u64(1) + u64(999))]), "'k' holds a string longer"),
    "nested array": (raw_file([entry("k", ARRAY, u32(9) + u64(1))]), "'k' is a list of the unsupported value type 9"),
    "unknown value": (raw_file([entry("k", 77, bytes(8))]), "'k' has the unknown value type 77"),
    "same key twice": (raw_file([entry("k", 4, u32(1))] * 2), "names 'k' twice"),
    "key not UTF-8": (raw_file([u64(1) + b"\xff" + u32(4) + u32(1)]), "not valid UTF-8"),
    "token not UTF-8": (raw_file([entry("k", ARRAY, u32(8) + u64(1) + u64(1) + b"\xff")]), "not valid UTF-8"),
    "no dimensions": (raw_file(tensors=[tensor_entry("v", (), 0, 0)], data=128), "has 0 dimensions"),
    "many dimensions": (raw_file(tensors=[tensor_entry("v", (1,) * 9, 0, 0)], data=128), "has 9 dimensions"),
    "empty dimension": (raw_file(tensors=[tensor_entry("v", (0,), 0, 0)], data=128), "impossible shape"),
    "part of a block": (raw_file(tensors=[tensor_entry("v", (33,), 8, 0)], data=128), "impossible shape"),
    "kind not read": (raw_file(tensors=[tensor_entry("v", (256,), 16, 0)], data=128), "'v' has the kind IQ2_XXS"),
    "unknown kind": (raw_file(tensors=[tensor_entry("v", (256,), 999, 0)], data=128), "kind number 999"),
    "past the end": (raw_file(tensors=[VECTOR], data=96), "'v' lies past the end"),
    "huge": (raw_file(tensors=[tensor_entry("v", (2**62, 2**62), 0, 0)], data=128), "'v' lies past the end"),
    "far away": (raw_file(tensors=[tensor_entry("v", (32,), 0, 2**63)], data=128), "'v' lies past the end"),
    "unaligned": (raw_file(tensors=[tensor_entry("v", (32,), 0, 4)], data=256), "unaligned"),
    "overlap": (raw_file(tensors=[VECTOR, tensor_entry("w", (32,), 0, 96)], data=256), "'v' and 'w' overlap"),
    "same tensor twice": (raw_file(tensors=[VECTOR, tensor_entry("v", (32,), 0, 128)], data=256), "'v' twice"),
    "alignment 0": (raw_file([entry("general.alignment", 4, u32(0))]), "general.alignment is 0"),
    "alignment 24": (raw_file([entry("general.alignment", 4, u32(24))]), "general.alignment is 24"),
    "alignment text": (raw_file([entry("general.alignment", 8, u64(0))]), "power of two"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_gguf(write(tmp_path, content))
    assert str(caught.value).startswith("model.gguf: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf"):
        read_gguf(tmp_path / "none.gguf")


def test_lookups_name_the_key(tmp_path: Path) -> None:
    file = read_gguf(write(tmp_path, raw_file([entry("n", 4, u32(1)), entry("b", 7, b"\1")])))
    assert file.integer("n") == 1
    assert file.integer("absent", 5) == 5
    assert file.flag("b", False) is True
    with pytest.raises(ModelError, match="no 'absent'"):
        file.text("absent")
    with pytest.raises(ModelError, match="'n' should be a string, not int"):
        file.text("n")
    with pytest.raises(ModelError, match="'b' should be an integer, not bool"):
        file.integer("b")
    with pytest.raises(ModelError, match="'n' should be a list of strings"):
        file.texts("n")


def read_everything(path: Path) -> None:
    """Parse, plan, and build the tokenizer; only `ModelError` may come out, and little memory may be used."""
    tracemalloc.start()
    try:
        file = read_gguf(path)
        plan_model(file)
        build_tokenizer(file)
    except ModelError as error:
        assert "\n" not in str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 << 20


def header_length(content: bytes) -> int:
    """Where the tensors start, roughly: the weights of the tiny file are most of it."""
    return content.index(b"output_norm.weight") + 4096


@FUZZ
@given(data=st.data())
def test_a_cut_file_is_refused(tmp_path: Path, tiny_bytes: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(tiny_bytes) - 1))
    with pytest.raises(ModelError):
        read_gguf(write(tmp_path, tiny_bytes[:length]))


@FUZZ
@given(data=st.data())
def test_a_damaged_file_does_no_harm(tmp_path: Path, tiny_bytes: bytes, data: st.DataObject) -> None:
    read_everything(write(tmp_path, patched(data, tiny_bytes, [(0, header_length(tiny_bytes))])))


@FUZZ
@given(content=st.binary(max_size=200))
def test_noise_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelError):
        read_gguf(write(tmp_path, b"GGUF\3\0\0\0" + content[:16].ljust(16, b"\1") + content))
