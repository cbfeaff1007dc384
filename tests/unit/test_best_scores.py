"""One pass over a row against the plain torch specification: the same words, the same tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import NumericsError
from outrider.kernels.native import cpu, missing
from outrider.sampling.best import ChoiceNoise, best_scores, reference

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
    noise = ChoiceNoise(2**63 + 12345, [0, 7, 2**31], 2) if noisy else None
    temperature = 0.7 if noisy else 1.0
    found = best_scores(logits, vocabulary, temperature, noise, width)
    assert_same(found, reference(logits, vocabulary, temperature, noise, width))


def test_flat_rows_read_every_word_right(kernels: str) -> None:
    """With all logits equal the noise alone decides, so every one of the winners' words must be right."""
    noise = ChoiceNoise(99, list(range(40)), 0)
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
    noise = ChoiceNoise(seed, [position, (position + 1) % 2**32], choice)
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
    with pytest.raises(NumericsError, match="no token is left"):
        best_scores(logits, 100, 1.0, ChoiceNoise(1, [0, 1], 0), 1)
