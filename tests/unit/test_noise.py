"""Keyed noise: the published generator, golden values that pin reproducibility, and the shape of the numbers."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from outrider.sampling.noise import (
    WORD,
    Purpose,
    choice_words,
    counter_word,
    gumbel,
    gumbel_from_words,
    gumbel_range,
    philox_blocks,
    philox_words,
    reference,
    uniform,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD, WORD, WORD, WORD), 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(counter: tuple[int, ...], key: int, expected: tuple[int, ...]) -> None:
    assert philox_words(key, counter) == reference(key, counter) == expected
    first = torch.tensor([counter[0]])
    assert tuple(philox_blocks(key, first, counter[1:])[0].tolist()) == expected


@pytest.mark.parametrize("seed", [0, 1, 2024, 2**63, 2**64 - 1, -1, -(2**63)])
def test_blocks_equal_the_scalar_generator(seed: int) -> None:
    first = torch.tensor([0, 1, 2, 37_983, 2**31, WORD])
    words = (WORD, 12_345, 0x80000003)
    blocks = philox_blocks(seed, first, words)
    for scalar in (philox_words, reference):
        assert [tuple(block) for block in blocks.tolist()] == [scalar(seed, (c, *words)) for c in first.tolist()]


def test_a_negative_seed_is_its_64_bit_pattern() -> None:
    assert philox_words(-1, (5, 6, 7, 8)) == philox_words(2**64 - 1, (5, 6, 7, 8))


def test_golden_choice_noise() -> None:
    """These numbers are what a seed means to users: when they change, every stored seed gives another text."""
    first = [
        0.17227248921932367,
        -0.6355854536680875,
        0.7954252019382283,
        -0.09597556307995611,
        -0.9412395038297917,
        1.2674111085458912,
    ]
    assert gumbel_range(2024, 6, choice_words(17, 0), CPU).tolist() == pytest.approx(first, rel=1e-12)
    picked = gumbel(2**64 - 1, torch.tensor([0, 5, 151_935]), choice_words(4095, 3)).tolist()
    assert picked == pytest.approx([-0.6392786132241012, -0.785148894728122, -0.15525413492511067], rel=1e-12)


def test_golden_dice() -> None:
    word = counter_word(Purpose.ACCEPT, 1, 2)
    assert word == 0x122
    assert uniform(2024, (0, 3, 5, word)) == 0.1553356316569916


@pytest.mark.parametrize("count", [1, 3, 4, 5, 1000, 1023])
def test_a_range_equals_the_single_tokens(count: int) -> None:
    words = choice_words(99, 1)
    assert torch.equal(gumbel_range(77, count, words, CPU), gumbel(77, torch.arange(count), words))


def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary() -> None:
    words = choice_words(3, 0)
    assert torch.equal(gumbel_range(5, 1024, words, CPU)[:1000], gumbel_range(5, 1000, words, CPU))


def test_every_part_of_the_counter_matters() -> None:
    """Position, choice, purpose, drafter, round, node and draw each give other numbers."""
    names = [
        counter_word(purpose, choice, source) for purpose, choice, source in product(Purpose, (0, 1, 7), (0, 1, 15))
    ]
    assert len(set(names)) == len(names)
    counters = [(draw, round_number, node, names[0]) for draw, round_number, node in product(range(3), repeat=3)]
    assert len({uniform(1, counter) for counter in counters}) == len(counters)
    words = {choice_words(position, choice) for position, choice in product(range(4), repeat=2)}
    assert len({gumbel_range(1, 1, word, CPU).item() for word in words}) == 16


def test_choice_and_round_noise_never_share_a_counter() -> None:
    assert choice_words(3, 5)[2] & 0xF not in {counter_word(purpose, 5) & 0xF for purpose in list(Purpose)[1:]}


def test_ends_of_the_unit_interval() -> None:
    """The fine end is the winning end, and neither end is infinite."""
    highest, lowest = gumbel_from_words(torch.tensor([0, WORD])).tolist()
    assert highest == pytest.approx(33 * math.log(2), rel=1e-9)
    assert lowest == pytest.approx(-math.log(33 * math.log(2)), rel=1e-9)
    near = gumbel_from_words(torch.tensor([1, 2, 3]))
    assert bool((near.diff() < 0).all())


def test_moments_of_the_transform_are_gumbels() -> None:
    """Every word equally often (an even grid): mean γ, variance π²/6, and the distribution function at its points."""
    count = 2**20
    noise = gumbel_from_words(torch.arange(count) * (2**32 // count) + 2**32 // (2 * count))
    euler = 0.57721566490153286
    assert float(noise.mean()) == pytest.approx(euler, abs=2e-5)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=5e-4)
    for point in (-1.0, 0.0, 1.0, 4.0):
        below = float((noise <= point).double().mean())
        assert below == pytest.approx(math.exp(-math.exp(-point)), abs=2 / count)


def test_keyed_numbers_look_uniform() -> None:
    """Mean and variance of 200,000 numbers within 6.2 standard errors: 1e-9 of false alarm each."""
    count = 200_000
    words = philox_blocks(31, torch.arange(count // 4), choice_words(8, 0)).double() / 2**32
    assert abs(float(words.mean()) - 0.5) < 6.2 * math.sqrt(1 / 12 / count)
    assert abs(float(words.var()) - 1 / 12) < 6.2 * math.sqrt(1 / 180 / count)
    dice = torch.tensor(
        [uniform(31, (0, round_number, 0, counter_word(Purpose.ACCEPT, 0))) for round_number in range(4000)]
    )
    assert abs(float(dice.mean()) - 0.5) < 6.2 * math.sqrt(1 / 12 / 4000)
    assert float(dice.min()) >= 0.0 and float(dice.max()) < 1.0
