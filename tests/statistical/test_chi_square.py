"""The judge of the sampling suites is judged: it sees what it says it sees, and pools what it must."""

from __future__ import annotations

import numpy as np
import pytest

from statistical import chi_square


def test_the_hardest_law_at_the_stated_distance_is_caught_as_often_as_stated() -> None:
    """Power 0.99 leaves 2 misses in 200 on average; more than 12 has odds below 1e-6."""
    law = np.full(80, 1 / 80)
    shifted = law * np.where(np.arange(80) < 40, 1.04, 0.96)
    assert np.abs(shifted - law).sum() / 2 == pytest.approx(0.02)
    samples = chi_square.needed(79)
    rng = np.random.default_rng(3)
    missed = sum(not chi_square.differs(counts, law) for counts in rng.multinomial(samples, shifted, size=200))
    assert missed <= 12
    assert chi_square.power(samples - 1, 79) < 0.99 <= chi_square.power(samples, 79)


def test_the_law_itself_passes() -> None:
    law = np.random.default_rng(1).dirichlet(np.ones(60))
    counts = np.random.default_rng(2).multinomial(100_000, law)
    chi_square.check(counts, law)


def test_too_few_samples_are_an_error_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="too few"):
        chi_square.check(np.array([500, 500]), np.array([0.5, 0.5]))


def test_an_impossible_cell_is_an_error_however_rare() -> None:
    with pytest.raises(AssertionError, match="impossible"):
        chi_square.statistic(np.array([99_999, 1]), np.array([1.0, 0.0]))


def test_rare_cells_are_pooled_until_the_pool_is_large_enough() -> None:
    law = np.array([0.5, 0.4, 0.0625, 0.02, 0.0125, 0.005])
    counts = np.array([500, 400, 60, 20, 10, 10])
    # Expected 20, 12.5 and 5 are pooled to 37.5, of which 40 were seen; 62.5 stands alone.
    value, degrees = chi_square.statistic(counts, law)
    assert (value, degrees) == (pytest.approx(2.5**2 / 62.5 + 2.5**2 / 37.5), 3)
