"""Linear layers on the CPU kernels against torch with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from outrider.errors import ConfigError
from outrider.heads import packed_linear
from outrider.heads.packed_linear import PackedLinear, Packing, from_stored, pack, to_stored
from outrider.kernels.native import cpu, missing, physical_cores

needs_kernels = pytest.mark.skipif(cpu is None, reason=f"{missing}")
BOUNDS = {"Q8_0": 0.006, "Q4_0": 0.09}
"""Of a matrix of normal numbers: what rounding it changes, relative to its size."""


@pytest.fixture(autouse=True)
def all_threads() -> Iterator[None]:
    yield
    if cpu is not None:
        cpu.set_threads(physical_cores())


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """Rows as the kernels see them: int8 with one scale for 32 numbers; float64."""
    groups = rows.reshape(-1, 32)
    most = groups.abs().amax(-1, keepdim=True)
    codes = torch.round(groups * torch.where(most > 0, 127 / most, torch.zeros(()))).clamp(-127, 127)
    return (codes.double() * (most / 127).double()).view(rows.shape)


@needs_kernels
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["Q8_0", "Q4_0"]),
    inputs=st.integers(1, 8).map(lambda groups: 32 * groups),
    outputs=st.integers(1, 100),
    leading=st.lists(st.integers(0, 5), max_size=3),
    bias=st.booleans(),
    strided=st.booleans(),
    threads=st.integers(1, 3),
)
def test_it_is_the_torch_layer_of_its_rounded_numbers(
    kind: str, inputs: int, outputs: int, leading: list[int], bias: bool, strided: bool, threads: int
) -> None:
    cpu.set_threads(threads)
    linear = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    weight = from_stored(to_stored(linear.weight, kind), kind, inputs, outputs)
    layer = pack(linear, Packing(body=kind))
    rows = numbers(*leading, 2 * inputs)[..., ::2] if strided else numbers(*leading, inputs)
    found = layer(rows)
    assert (found.shape, found.dtype) == ((*leading, outputs), torch.float32)
    expected = nn.functional.linear(rounded(rows), weight.double(), linear.bias.double() if bias else None)
    size = rounded(rows).abs() @ weight.double().abs().T + 1
    assert float(((found - expected).abs() / size).max() if found.numel() else 0) < 3e-6


@needs_kernels
@pytest.mark.parametrize("kind", BOUNDS)
def test_a_row_has_the_same_bits_in_any_company(kind: str) -> None:
    layer, rows = pack(nn.Linear(96, 70), Packing(body=kind)), numbers(40, 96)
    alone = torch.cat([layer(row) for row in rows.split(1)])
    for count in (2, 5, 13, 40):
        assert torch.equal(layer(rows[:count]), alone[:count])
    assert torch.equal(layer(rows.view(2, 4, 5, 96)).view(40, 70), alone)
    assert torch.equal(layer(rows[7]), alone[7])


@needs_kernels
def test_a_result_that_is_held_is_not_written_over() -> None:
    layer = pack(nn.Linear(32, 8))
    first = layer(numbers(3, 32))
    kept = first.clone()
    layer(numbers(3, 32, seed=1))
    assert torch.equal(first, kept)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(64, 64)
        self.parts = nn.ModuleDict({"again": self.shared, "odd": nn.Linear(40, 64, bias=False)})
        self.norm, self.embedding = nn.LayerNorm(64), nn.Embedding(9, 64)
        self.lm_head = nn.Linear(64, 96, bias=False)
        self.lm_head.weight.requires_grad_(False)


@needs_kernels
@pytest.mark.parametrize("packing", [Packing(), Packing(body="Q4_0", head="Q8_0"), Packing(body=None, head="Q4_0")])
def test_a_module_is_packed_in_place(packing: Packing) -> None:
    block = nn.Sequential(Block(), nn.ReLU())
    inner = block[0]
    head = inner.lm_head.weight
    assert pack(block, packing) is block
    assert type(inner.parts["odd"]) is nn.Linear, "40 inputs are no multiple of 32"
    assert inner.parts["again"] is inner.shared
    assert [type(inner.norm), type(inner.embedding)] == [nn.LayerNorm, nn.Embedding]
    assert type(inner.shared) is (nn.Linear if packing.body is None else PackedLinear)
    rows = numbers(4, 64)
    expected = nn.functional.linear(
        rounded(rows).float(), from_stored(to_stored(head, packing.head), packing.head, 64, 96)
    )
    torch.testing.assert_close(inner.lm_head(rows), expected)
    assert f"kind={packing.head}" in repr(inner.lm_head)


@needs_kernels
def test_what_is_packed_twice_is_left_as_it_is() -> None:
    block = pack(nn.Sequential(nn.Linear(32, 32)))
    layer = block[0]
    assert pack(block)[0] is layer


@needs_kernels
@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["Q8_0", "Q4_0"]),
    inputs=st.integers(1, 6).map(lambda groups: 32 * groups),
    outputs=st.integers(1, 70),
)
def test_a_stored_matrix_comes_back_and_multiplies_like_the_packed_one(kind: str, inputs: int, outputs: int) -> None:
    linear = nn.Linear(inputs, outputs).requires_grad_(False)
    linear.weight.copy_(numbers(outputs, inputs))
    raw = to_stored(linear.weight, kind)
    assert (raw.dtype, raw.shape) == (torch.uint8, (outputs, inputs // 32 * (34 if kind == "Q8_0" else 18)))
    back = from_stored(raw, kind, inputs, outputs)
    assert float((back - linear.weight).norm() / linear.weight.norm()) < 1.5 * BOUNDS[kind]
    again, rows = nn.Linear(inputs, outputs).requires_grad_(False), numbers(5, inputs)
    again.load_state_dict({"weight": back, "bias": linear.bias})
    assert torch.equal(pack(again, Packing(body=kind))(rows), pack(linear, Packing(body=kind))(rows))


def test_without_kernels_everything_stays_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "cpu", None)
    monkeypatch.setattr(packed_linear, "missing", "there is no compiler")
    block = nn.Sequential(nn.Linear(32, 32))
    assert type(pack(block)[0]) is nn.Linear
    with pytest.raises(ConfigError, match="compiler"):
        to_stored(block[0].weight, "Q8_0")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Packing(body="Q3_K"), "'Q3_K'; there are: Q8_0, Q4_0"),
        (lambda: Packing(head="q4_0"), "'q4_0'"),
        (lambda: to_stored(torch.zeros(2, 40), "Q8_0"), "40 inputs"),
        (lambda: from_stored(torch.zeros(33, dtype=torch.uint8), "Q8_0", 32, 1), "33 bytes .* takes 34"),
        (lambda: from_stored(torch.zeros(36, dtype=torch.uint8), "Q4_0", 40, 2), "36 bytes"),
    ],
)
def test_wrong_kinds_and_sizes_are_refused(wrong, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        wrong()


@needs_kernels
def test_rows_of_another_width_are_refused_and_of_another_precision_are_taken() -> None:
    layer, rows = pack(nn.Linear(64, 8)), numbers(2, 64).bfloat16()
    with pytest.raises(ValueError, match="width"):
        layer(numbers(2, 2, 32))
    for other in (rows, rows.double()):
        assert torch.equal(layer(other), layer(rows.float()))
