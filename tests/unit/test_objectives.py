"""Each objective against its closed form, its gradient against differences, and its zero."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.train.objectives import make_objective, names
from outrider.train.recipes._weighted_loss import d_pace, exponential, geometric

DIVERGENCES = ["kl", "reverse_kl", "jsd", "tv", "acceptance", "lk_hybrid"]
"""Those that are zero where draft and target agree."""


def rows(
    seed: int, n: int, v: int, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, v, generator=generator, dtype=dtype)
    p = torch.softmax(2 * torch.randn(n, v, generator=generator, dtype=dtype), -1)
    x = torch.randint(v, (n,), generator=generator)
    return z, p, x


def by_hand(name: str, z: list[float], p: list[float], x: int) -> float:
    """The definition, one number at a time."""
    total = sum(math.exp(value) for value in z)
    q = [math.exp(value) / total for value in z]

    def divergence(a: list[float], b: list[float]) -> float:
        return sum(one * math.log(one / other) for one, other in zip(a, b, strict=True))

    mean = [(one + other) / 2 for one, other in zip(p, q, strict=True)]
    distance = sum(abs(one - other) for one, other in zip(p, q, strict=True)) / 2
    share = math.exp(-3 * (1 - distance))
    return {
        "cross_entropy": -math.log(q[x]),
        "kl": divergence(p, q),
        "reverse_kl": divergence(q, p),
        "jsd": (divergence(p, mean) + divergence(q, mean)) / 2,
        "tv": distance,
        "acceptance": -math.log(1 - distance),
        "lk_hybrid": share * divergence(p, q) + (1 - share) * distance,
    }[name]


def test_every_objective_is_tested() -> None:
    assert sorted([*DIVERGENCES, "cross_entropy"]) == names()


@pytest.mark.parametrize("name", names())
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 5), v=st.integers(2, 9))
def test_closed_form(name: str, seed: int, n: int, v: int) -> None:
    z, p, x = rows(seed, n, v)
    expected = [by_hand(name, *row) for row in zip(z.tolist(), p.tolist(), x.tolist(), strict=True)]
    torch.testing.assert_close(make_objective(name)(z, p, x), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in names() if name != "lk_hybrid"])
def test_gradient(name: str) -> None:
    z, p, x = rows(3, 4, 7)
    loss = make_objective(name)
    assert torch.autograd.gradcheck(lambda logits: loss(logits, p, x), (z.requires_grad_(),))


def test_gradient_of_the_hybrid_leaves_its_weight_alone() -> None:
    z, p, x = rows(4, 4, 7)
    weight = torch.exp(-3 * (1 - make_objective("tv")(z, p, x)))

    def fixed(logits: torch.Tensor) -> torch.Tensor:
        return weight * make_objective("kl")(logits, p, x) + (1 - weight) * make_objective("tv")(logits, p, x)

    leaf, other = z.clone().requires_grad_(), z.clone().requires_grad_()
    make_objective("lk_hybrid")(leaf, p, x).sum().backward()
    fixed(other).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_at_equality_and_nowhere_below(name: str, dtype: torch.dtype) -> None:
    z, p, x = rows(5, 8, 300, dtype)
    loss = make_objective(name)
    assert loss(z, torch.softmax(z, -1), x).abs().max() < (1e-6 if dtype == torch.float32 else 1e-14)
    assert (loss(z, p, x) > 0).all()


@pytest.mark.parametrize("name", names())
def test_finite_where_the_two_share_nothing(name: str) -> None:
    z = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    loss = make_objective(name)(z, torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([1]))
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(z.grad).all()


def test_missing_mass_counts_as_rejected() -> None:
    z, p, x = rows(6, 5, 8)
    assert torch.allclose(make_objective("tv")(z, 0 * p, x), torch.ones(5, dtype=torch.float64))


def test_half_precision_is_widened() -> None:
    z, p, x = rows(7, 3, 50, torch.float32)
    for name in names():
        assert make_objective(name)(z.bfloat16(), p, x).dtype == torch.float32


def test_weighted_sums_are_values() -> None:
    z, p, x = rows(8, 4, 6)
    mixed = make_objective("0.1*cross_entropy + 1.8*tv")
    q = torch.softmax(z, -1)
    expected = 0.1 * make_objective("cross_entropy")(z, p, x) + 0.9 * (p - q).abs().sum(-1)
    torch.testing.assert_close(mixed(z, p, x), expected)
    assert (mixed.reads_teacher, mixed.reads_tokens) == (True, True)
    assert not make_objective("cross_entropy").reads_teacher
    assert not make_objective("1.8*tv").reads_tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tvd", "there is no objective 'tvd'; there are: acceptance"),
        ("2tv", "'2tv' is not"),
        ("1..2*tv", "must be a number, not '1..2'"),
    ],
)
def test_bad_objectives_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_objective(text)


def test_weights_by_depth() -> None:
    torch.testing.assert_close(geometric(3, 0.8), torch.tensor([1.0, 0.8, 0.64]))
    torch.testing.assert_close(exponential(3, 4.0), torch.exp(torch.tensor([0.0, -0.25, -0.5])))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), depths=st.integers(1, 6), alpha=st.floats(0, 0.9))
def test_d_pace_is_the_derivative_of_the_expected_length(seed: int, depths: int, alpha: float) -> None:
    q = torch.rand(2, depths, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.98 + 0.01
    log_c = ((1 - alpha) * q + alpha).log().requires_grad_()
    log_c.cumsum(-1).exp().sum().backward()
    torch.testing.assert_close(d_pace(q, alpha), log_c.grad)


def test_d_pace_at_its_ends() -> None:
    q = torch.tensor([0.5, 0.5, 0.5])
    torch.testing.assert_close(d_pace(q, 1.0), torch.tensor([3.0, 2.0, 1.0]))
    torch.testing.assert_close(d_pace(q, 0.0), torch.tensor([0.875, 0.375, 0.125]))
