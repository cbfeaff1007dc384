"""The CPU kernels against plain arithmetic, against each other, and against themselves in other company."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.kernels.native import cpu, missing, physical_cores
from outrider.models.files.dequantize import TENSOR_KINDS, DequantizeJob, dequantize
from outrider.models.native.packed_weights import StoredMatrix, quantized

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")

KINDS = {kind.name: kind for kind in TENSOR_KINDS.values()}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SCALE_BYTES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
ROWS = 40


@pytest.fixture(autouse=True)
def best_kernels() -> Iterator[None]:
    yield
    cpu.select_kernels(None)
    cpu.set_threads(physical_cores())


def stored(kind: str, outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Random rows of a kind, as a file holds them: every code, scales of an ordinary size."""
    rng = np.random.default_rng(seed)
    if kind in PLAIN:
        numbers = torch.from_numpy(rng.standard_normal((outputs, inputs)).astype(np.float32))
        return numbers.to(PLAIN[kind]).view(torch.uint8).numpy().reshape(-1)
    size = KINDS[kind].block_bytes
    blocks = rng.integers(0, 256, (outputs * inputs // KINDS[kind].block_elements, size), dtype=np.uint8)
    for at in SCALE_BYTES[kind]:
        scales = (0.1 * rng.standard_normal((len(blocks), 1))).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(-1)


def decoded(kind: str, raw: np.ndarray, outputs: int, inputs: int) -> torch.Tensor:
    out = torch.empty(outputs, inputs)
    dequantize([DequantizeJob(torch.from_numpy(raw).view(outputs, -1), KINDS[kind], out)])
    return out


def packed(kind: str, raw: np.ndarray, outputs: int, inputs: int, order: np.ndarray | None = None):  # type: ignore[no-untyped-def]
    to = np.zeros(cpu.packed_bytes(kind, inputs, outputs), dtype=np.uint8)
    cpu.pack(kind, inputs, outputs, raw, order, to)
    return cpu.Matrix(kind, inputs, outputs, to)


def product(matrix, rows: torch.Tensor) -> np.ndarray:  # type: ignore[no-untyped-def]
    to = np.empty((len(rows), matrix.outputs), dtype=np.float32)
    cpu.linear(matrix, rows.numpy(), to)
    return to


def rounded_rows(rows: torch.Tensor) -> torch.Tensor:
    """What the integer kernels make of rows: int8 with one scale for 32 numbers; float64."""
    groups = rows.view(len(rows), -1, 32)
    most = groups.abs().amax(-1, keepdim=True)
    codes = torch.round(groups * torch.where(most > 0, 127 / most, torch.zeros(()))).clamp(-127, 127)
    return (codes.double() * (most / 127).double()).view(rows.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "blocks"), [(70, 1), (32, 3), (5, 2)])
def test_packing_keeps_every_bit_and_takes_no_more_room_than_the_file(kind: str, outputs: int, blocks: int) -> None:
    inputs = 256 * blocks if KINDS[kind].block_elements == 256 else 32 * blocks
    raw = stored(kind, outputs, inputs)
    matrix = packed(kind, raw, outputs, inputs)
    assert cpu.packed_bytes(kind, inputs, outputs) == len(raw) // outputs * (-(-outputs // 32) * 32)
    row = np.empty(inputs, dtype=np.float32)
    for output, expected in enumerate(decoded(kind, raw, outputs, inputs).numpy()):
        cpu.unpack_output(matrix, output, row)
        np.testing.assert_array_equal(row, expected)


def test_rows_can_be_packed_in_another_order() -> None:
    raw = stored("Q8_0", 6, 64)
    order = np.array([4, 0, 5, 1], dtype=np.int64)
    expected = decoded("Q8_0", raw, 6, 64).numpy()[order]
    row = np.empty(64, dtype=np.float32)
    for output in range(4):
        cpu.unpack_output(packed("Q8_0", raw, 4, 64, order), output, row)
        np.testing.assert_array_equal(row, expected[output])


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_exact_arithmetic_but_for_fp32_rounding(kind: str) -> None:
    raw = stored(kind, 70, 512)
    rows = torch.randn(ROWS, 512, generator=torch.Generator().manual_seed(1))
    rows[3] *= 100
    rows[5, 40:] = 0
    exact = rows.double() if kind in PLAIN else rounded_rows(rows)
    weights = decoded(kind, raw, 70, 512).double()
    expected, size = exact @ weights.T, exact.abs() @ weights.abs().T
    # The integer kernels add a group's codes before they subtract the zero point, which doubles what rounds.
    error = (torch.from_numpy(product(packed(kind, raw, 70, 512), rows)).double() - expected).abs()
    assert float((error / (size + 1e-30)).max()) < 3e-6


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_gives_the_same_bits(kind: str) -> None:
    raw = stored(kind, 70, 512)
    matrix, rows = packed(kind, raw, 70, 512), torch.randn(17, 512, generator=torch.Generator().manual_seed(2))
    found = {}
    for name in cpu.kernel_names():
        cpu.select_kernels(name)
        assert cpu.kernel_name() == name
        found[name] = product(matrix, rows)
    for name, bits in found.items():
        np.testing.assert_array_equal(bits, found["portable"], err_msg=name)


@pytest.mark.parametrize("kernels", [] if cpu is None else cpu.kernel_names())
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(kind: str, kernels: str) -> None:
    cpu.select_kernels(kernels)
    matrix = packed(kind, stored(kind, 40, 256), 40, 256)
    rows = torch.randn(ROWS, 256, generator=torch.Generator().manual_seed(3))
    alone = np.concatenate([product(matrix, rows[i : i + 1]) for i in range(ROWS)])
    for count in range(2, ROWS + 1):
        np.testing.assert_array_equal(product(matrix, rows[-count:]), alone[-count:], err_msg=f"{count} rows")


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    outputs=st.integers(1, 200),
    blocks=st.integers(1, 4),
    rows=st.integers(1, 64),
    threads=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_threads_and_shapes_change_nothing(
    kind: str, outputs: int, blocks: int, rows: int, threads: int, seed: int
) -> None:
    inputs = blocks * max(32, KINDS[kind].block_elements)
    matrix = packed(kind, stored(kind, outputs, inputs, seed), outputs, inputs)
    data = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))
    cpu.set_threads(1)
    one = product(matrix, data)
    cpu.set_threads(threads)
    np.testing.assert_array_equal(product(matrix, data), one)
    np.testing.assert_array_equal(product(matrix, data[:1]), one[:1])


def test_a_row_with_a_number_that_is_none_gives_none() -> None:
    matrix = packed("Q8_0", stored("Q8_0", 8, 64), 8, 64)
    for poison in (np.nan, np.inf, -np.inf):
        rows = torch.ones(3, 64)
        rows[1, 37] = poison
        found = product(matrix, rows)
        assert np.isnan(found[1]).all()
        assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("kernels", [] if cpu is None else cpu.kernel_names())
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
def test_a_soft_cap_is_the_tangent_and_the_same_bits_everywhere(kernels: str, count: int) -> None:
    numbers = 40 * torch.randn(count, generator=torch.Generator().manual_seed(5))
    numbers[: count // 2] *= 1e-3
    numbers[0] = 1e30
    found = {}
    for name in (kernels, "portable"):
        cpu.select_kernels(name)
        found[name] = numbers.numpy().copy()
        cpu.soft_cap(found[name], 30.0)
    np.testing.assert_array_equal(found[kernels], found["portable"])
    exact = 30 * torch.tanh(numbers.double() / 30)
    assert float((torch.from_numpy(found[kernels]).double() - exact).abs().max()) < 3e-7 * 30


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_soft_cap_hides_no_number_that_is_none(poison: float) -> None:
    numbers = np.ones(20, dtype=np.float32)
    numbers[[3, 18]] = poison
    cpu.soft_cap(numbers, 5.0)
    assert np.isnan(numbers[[3, 18]]).all()
    assert np.isfinite(np.delete(numbers, [3, 18])).all()


@pytest.mark.parametrize(("kind", "bound"), [("Q8_0", 0.006), ("Q4_0", 0.09)])
@pytest.mark.parametrize("source", KINDS)
def test_requantising_stays_close(source: str, kind: str, bound: float) -> None:
    numbers = torch.randn(8, 512, generator=torch.Generator().manual_seed(4))
    raw = numbers.to(PLAIN[source]).view(torch.uint8).numpy().reshape(-1) if source in PLAIN else stored(source, 8, 512)
    before = decoded(source, raw, 8, 512)
    made = quantized(StoredMatrix(source, 512, 8, lambda: raw), kind)
    after = decoded(kind, made.raw(), 8, 512)
    if source in PLAIN:  # uniform random codes are no weights; those need only be read right
        assert float((after - before).norm() / before.norm()) < bound
    else:
        assert float((after - before).norm() / before.norm()) < 2 * bound


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cpu.packed_bytes("Q2_K", 256, 32),
        lambda: cpu.packed_bytes("Q4_K", 128, 32),
        lambda: cpu.Matrix("Q8_0", 32, 32, np.zeros(5, dtype=np.uint8)),
        lambda: cpu.pack("Q8_0", 32, 2, np.zeros(34, dtype=np.uint8), None, np.zeros(34 * 32, dtype=np.uint8)),
        lambda: cpu.pack("Q8_0", 32, 1, np.zeros(34, dtype=np.uint8), np.array([1]), np.zeros(34 * 32, dtype=np.uint8)),
        lambda: cpu.select_kernels("no such set"),
        lambda: cpu.set_threads(0),
        lambda: cpu.soft_cap(np.zeros(4, dtype=np.float32), 0.0),
    ],
)
def test_wrong_calls_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"."):
        wrong()


def test_threads_that_only_just_began_can_be_stopped() -> None:
    """Whatever a thread saw of the pool, it must see that it is being stopped, or it is waited for without end."""
    matrix, data = packed("Q8_0", stored("Q8_0", 512, 64), 512, 64), torch.randn(1, 64)
    for _ in range(1000):
        cpu.set_threads(4)
        product(matrix, data)
        cpu.set_threads(1)
    assert cpu.threads() == 1
