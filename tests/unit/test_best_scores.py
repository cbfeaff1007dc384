"""The kernels' choice from a row against the plain torch specification: the same words, survivors and tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from row_judge import TRUNCATIONS, at_edge, rows, specified

from outrider.errors import NumericsError, RequestError
from outrider.kernels.native import cpu, missing, physical_cores
from outrider.sampling.best import ChoiceNoise, best_scores, reference, survivors
from outrider.sampling.distribution import Truncation
from outrider.sampling.noise import philox_blocks

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")


@pytest.fixture(params=[] if cpu is None else cpu.kernel_names())
def kernels(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    cpu.select_kernels(request.param)
    yield request.param
    cpu.select_kernels(None)


def assert_same(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Equal scores to an ulp of the noise, and equal ids but where two scores are that close."""
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=8e-6)
    differs = found[0] != expected[0]
    assert float(differs.float().mean()) < 0.01


@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("vocabulary", [1, 3, 63, 64, 65, 1000, 151_936])
@pytest.mark.parametrize("noisy", [False, True])
def test_every_instruction_set_gives_the_references_tokens(
    kernels: str, vocabulary: int, width: int, noisy: bool
) -> None:
    logits = 3 * torch.randn(3, vocabulary + 5, generator=torch.Generator().manual_seed(width))
    noise = ChoiceNoise.of(2**63 + 12345, [0, 7, 2**31], 2) if noisy else None
    temperature = 0.7 if noisy else 1.0
    found = best_scores(logits, vocabulary, temperature, noise, width)
    assert_same(found, reference(logits, vocabulary, temperature, noise, width))


def test_flat_rows_read_every_word_right(kernels: str) -> None:
    """With all logits equal the noise alone decides, so every one of the winners' words must be right."""
    noise = ChoiceNoise.of(99, list(range(40)), 0)
    logits = torch.zeros(40, 4096)
    found, expected = (f(logits, 4096, 1.0, noise, 64) for f in (best_scores, reference))
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    choice=st.integers(0, 2**16),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0]),
    temperature=st.sampled_from([0.05, 0.5, 1.0, 2.0, 100.0]),
    vocabulary=st.integers(1, 700),
)
def test_tokens_are_the_references(
    seed: int, position: int, choice: int, spread: float, temperature: float, vocabulary: int
) -> None:
    logits = spread * torch.randn(2, vocabulary, generator=torch.Generator().manual_seed(seed % 1000))
    logits[0, ::3] = -torch.inf if vocabulary > 3 else 0.0
    noise = ChoiceNoise.of(seed, [position, (position + 1) % 2**32], choice)
    assert_same(
        best_scores(logits, vocabulary, temperature, noise, 4), reference(logits, vocabulary, temperature, noise, 4)
    )


def test_ties_go_to_the_lowest_id(kernels: str) -> None:
    logits = torch.zeros(1, 200)
    logits[0, [150, 70, 3]] = 1.0
    ids, scores = best_scores(logits, 200, 1.0, None, 4)
    assert ids.tolist() == [[3, 70, 150, 0]]
    assert scores.tolist() == [[1.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(kernels: str, poison: float) -> None:
    logits = torch.zeros(2, 100)
    logits[1, 77] = poison
    with pytest.raises(NumericsError, match="NaN or infinity"):
        best_scores(logits, 100, 1.0, None, 1)
    logits[1] = -torch.inf
    with pytest.raises(RequestError, match="every token is banned"):
        best_scores(logits, 100, 1.0, ChoiceNoise.of(1, [0, 1], 0), 1)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, 0x0123456789ABCDEF])
def test_words_are_the_references_bit_for_bit(kernels: str, seed: int) -> None:
    for words in ((0, 0, 0), (2**32 - 1, 2**32 - 1, 2**32 - 1), (77, 3, 1 << 8)):
        found = torch.zeros(152_064, dtype=torch.uint32)
        cpu.noise_words(seed, *words, found.numpy())
        expected = philox_blocks(seed, torch.arange(len(found) // 4), words).reshape(-1)
        assert torch.equal(found.long(), expected)


def assert_survivors(row: torch.Tensor, temperature: float, truncation: Truncation) -> None:
    """The specification's survivors, but for tokens whose nucleus ends within a rounding of top_p."""
    scaled = row / temperature
    found, expected = survivors(row, temperature, truncation), specified(scaled, truncation)
    if not torch.equal(found, expected):
        differ = set(found.tolist()) ^ set(expected.tolist())
        assert all(at_edge(scaled, truncation, token) for token in differ), (found, expected)


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 1000, 20_000])
def test_every_instruction_set_keeps_the_references_survivors(
    kernels: str, vocabulary: int, truncation: Truncation
) -> None:
    for case in range(8):
        assert_survivors(rows(1, vocabulary, case)[0], (1.0, 0.7)[case % 2], truncation)


@settings(max_examples=300, deadline=None)
@given(
    logits=st.lists(
        st.sampled_from([-3.0, -1.5, 0.0, 0.25, 1.0, 2.5, -math.inf])
        | st.floats(-(2.0**20), 2.0**20, width=32)
        | st.floats(-20, 20, width=32),
        min_size=1,
        max_size=200,
    ),
    top_k=st.sampled_from([0, 1, 2, 3, 50, 10**12]),
    top_p=st.sampled_from([1.0, 1.0 - 1e-7, 0.95, 0.61, 0.3, 1e-6, 1e-9]),
    min_p=st.sampled_from([0.0, 1e-300, 0.05, 0.4, 1.0]),
    temperature=st.sampled_from([1.0, 0.1, 0.7, 100.0]),
)
def test_survivors_are_the_references(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    if max(logits) > -math.inf:
        assert_survivors(torch.tensor(logits), temperature, Truncation(top_k, top_p, min_p))


@pytest.mark.parametrize("count", [2, 300, 5000])
def test_equal_logits_are_cut_by_id(kernels: str, count: int) -> None:
    row = torch.full((count + 7,), -torch.inf)
    row[7:] = -4.25
    assert survivors(row, 0.7, Truncation(top_k=count // 2)).tolist() == list(range(7, 7 + count // 2))
    assert len(survivors(row, 0.7, Truncation(top_p=0.5))) == count // 2
    assert survivors(row, 0.7, Truncation(top_k=count, min_p=1.0)).tolist() == list(range(7, 7 + count))
    assert survivors(row, 0.7, Truncation(top_p=1e-9)).tolist() == [7]
    # Half of the best half: the nucleus is measured on what top_k left of the ties.
    assert len(survivors(row, 0.7, Truncation(top_k=count // 2, top_p=0.5))) == (count // 2 + 1) // 2


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([ids for ids, _ in parts]), torch.cat([scores for _, scores in parts])


def test_rows_are_picked_and_named_one_by_one(kernels: str) -> None:
    logits, noise = rows(5, 900, 1), ChoiceNoise([1, 2, 3, 4], [5, 5, 6, 7], [0, 0, 1, 2])
    chosen = [3, 0, 3, 4]
    found = best_scores(logits, 800, 0.7, noise, 4, rows=chosen)
    assert_same(found, reference(logits[chosen], 800, 0.7, noise, 4))
    with pytest.raises(IndexError):
        best_scores(logits, 800, 0.7, noise, 4, rows=[0, 1, 2, 5])
    with pytest.raises(ValueError, match="seed"):
        best_scores(logits, 800, 0.7, noise, 4, rows=[0, 1])


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_bits_depend_on_the_row_alone(truncation: Truncation) -> None:
    """Not on the instruction set, on the rows beside it, or on the number of threads."""
    for case in range(6):
        logits = rows(5, (3001, 20_000)[case % 2], case)
        noise = ChoiceNoise([case, 5, 5, case, 2**63 + 1], [case, 3, 3, 9, 2**31], [0, 1, 2, 0, 7])
        for width in (1, 16):
            ask = logits, logits.shape[1], 0.8, noise, width, truncation
            found = []
            try:
                for name in cpu.kernel_names():
                    cpu.select_kernels(name)
                    found.append(best_scores(*ask))
                cpu.set_threads(3)
                found.append(best_scores(*ask))
            finally:
                cpu.select_kernels(None)
                cpu.set_threads(physical_cores())
            each = [ChoiceNoise.of(seed, [position], choice) for seed, position, choice in zip(*noise, strict=True)]
            alone = [
                best_scores(logits[i : i + 1], logits.shape[1], 0.8, own, width, truncation)
                for i, own in enumerate(each)
            ]
            picked = [best_scores(*ask[:3], own, width, truncation, [i]) for i, own in enumerate(each)]
            assert all(map(torch.equal, *map(_joined, (alone, picked))))
            found.append(_joined(alone))
            for ids, scores in found[1:]:
                assert torch.equal(ids, found[0][0])
                assert torch.equal(scores, found[0][1])


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
def test_truncated_scores_are_the_references(kernels: str, truncation: Truncation) -> None:
    """More than survive may be asked for, and more than the kernels hold."""
    for case, width in enumerate((1, 4, 16, 200, 1500)):
        logits = rows(2, 2000, case)
        ask = logits, 2000, 0.9, ChoiceNoise.of(case, [5, 5], 1), width, truncation
        (ids, scores), (expected_ids, expected) = best_scores(*ask), reference(*ask)
        assert torch.equal(ids < 0, expected_ids < 0)
        torch.testing.assert_close(scores, expected, rtol=0, atol=8e-6)
        assert float((ids != expected_ids).float().mean()) < 0.01


@pytest.mark.parametrize("truncation", TRUNCATIONS[1:5], ids=str)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_truncated_rows_that_are_no_numbers_are_refused(kernels: str, truncation: Truncation, poison: float) -> None:
    row = torch.zeros(100)
    row[77] = poison
    with pytest.raises(NumericsError, match="NaN or infinity"):
        survivors(row, 1.0, truncation)
    with pytest.raises(NumericsError, match="NaN or infinity"):
        best_scores(row.unsqueeze(0), 100, 1.0, ChoiceNoise.of(1, [0], 0), 1, truncation)
    with pytest.raises(RequestError, match="every token is banned"):
        survivors(torch.full((100,), -torch.inf), 1.0, truncation)


def test_logits_too_large_for_the_temperature_are_refused(kernels: str) -> None:
    logits = torch.full((1, 10), 30.0)
    for temperature in (1e-38, 1e-60):
        with pytest.raises(NumericsError, match="NaN or infinity"):
            best_scores(logits, 10, temperature, ChoiceNoise.of(1, [0], 0), 1)
        with pytest.raises(NumericsError, match="NaN or infinity"):
            survivors(logits[0], temperature, Truncation(top_k=3))
