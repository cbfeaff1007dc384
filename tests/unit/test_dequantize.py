"""Dequantising is the reference's arithmetic, bit for bit, in every type and on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch

from outrider.models.files import dequantize as module
from outrider.models.files.dequantize import TENSOR_KINDS, DequantizeJob, TensorKind, dequantize

KINDS = list(TENSOR_KINDS.items())
NAMES = [kind.name for kind in TENSOR_KINDS.values()]


def random_blocks(kind: TensorKind, blocks: int, seed: int = 0) -> np.ndarray:
    """Any bytes are a legal block."""
    return np.random.default_rng(seed).integers(0, 256, (blocks, kind.block_bytes), dtype=np.uint8)


def reference(raw: np.ndarray, kind_id: int) -> torch.Tensor:
    plain = {0: np.float32, 1: np.float16}
    typed = raw.view(plain[kind_id]) if kind_id in plain else raw
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(typed, gguf.GGMLQuantizationType(kind_id)).astype(np.float32)
    return torch.from_numpy(values.reshape(-1))


def equal_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal bit patterns, where any not-a-number equals any other."""
    same = ours.view(torch.int32) == theirs.view(torch.int32)
    return bool((same | (ours.isnan() & theirs.isnan())).all())


def decoded(raw: np.ndarray, kind: TensorKind, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(len(raw) * kind.block_elements, dtype=dtype)
    dequantize([DequantizeJob(torch.from_numpy(raw), kind, out)])
    return out


@pytest.mark.parametrize(("kind_id", "kind"), KINDS, ids=NAMES)
def test_layout_is_the_formats(kind_id: int, kind: TensorKind) -> None:
    name = gguf.GGMLQuantizationType(kind_id)
    assert kind.name == name.name
    assert (kind.block_elements, kind.block_bytes) == gguf.GGML_QUANT_SIZES[name]


@pytest.mark.parametrize("blocks", [1, 3, 1031])
@pytest.mark.parametrize(("kind_id", "kind"), KINDS, ids=NAMES)
def test_fp32_is_bit_equal_to_the_reference(kind_id: int, kind: TensorKind, blocks: int) -> None:
    raw = random_blocks(kind, blocks)
    assert equal_bits(decoded(raw, kind), reference(raw, kind_id))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind_id", "kind"), KINDS, ids=NAMES)
def test_narrow_types_are_rounded_once_from_fp32(kind_id: int, kind: TensorKind, dtype: torch.dtype) -> None:
    raw = random_blocks(kind, 257, seed=1)
    wanted = reference(raw, kind_id).to(dtype)
    assert torch.equal(decoded(raw, kind, dtype).nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind_id", "kind"), KINDS, ids=NAMES)
def test_pieces_join_without_a_seam(
    kind_id: int, kind: TensorKind, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 512)
    monkeypatch.setattr(module, "TASK_ELEMENTS", 1536)
    raw = random_blocks(kind, 1000, seed=2)
    wanted = reference(raw, kind_id).to(dtype)
    assert torch.equal(decoded(raw, kind, dtype).nan_to_num(), wanted.nan_to_num())


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_many_tensors_at_once_and_the_thread_count_stays(threads: int) -> None:
    kinds = [kind for kind in TENSOR_KINDS.values() for _ in range(3)]
    raws = [random_blocks(kind, 40 + n, seed=n) for n, kind in enumerate(kinds)]
    outs = [torch.empty(len(raw), kind.block_elements) for raw, kind in zip(raws, kinds, strict=True)]
    dequantize([DequantizeJob(torch.from_numpy(r), k, o) for r, k, o in zip(raws, kinds, outs, strict=True)])
    for raw, kind, out in zip(raws, kinds, outs, strict=True):
        assert equal_bits(out.view(-1), decoded(raw, kind))
    assert torch.get_num_threads() == threads


def test_an_error_in_a_thread_comes_out_and_the_thread_count_stays(threads: int) -> None:
    kind = TENSOR_KINDS[8]
    with pytest.raises(RuntimeError):
        dequantize([DequantizeJob(torch.zeros(33, dtype=torch.uint8), kind, torch.empty(32))])
    assert torch.get_num_threads() == threads
