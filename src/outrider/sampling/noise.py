"""Keyed noise: every random number is computed from a key; there is no stream.

The key is the request's 64-bit seed and a counter of four words.  So a number does not depend on other requests, on the
order of work, or on how far a drafter looked ahead.  There are two families, which must not be mixed:

* *choice* noise, one number per (token id, absolute position, choice): the randomness of the target's own choice.  A
  drafter may read it, because a draft is accepted only if it *is* the target's choice.
* *round* noise, one number per (draw, round, node): the randomness of ratio rules.  It is keyed by round and not by
  position, because a round looks past its last accepted token; keyed by position, numbers would be used twice.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import enum
from typing import Final

import torch

from outrider.kernels.native import cpu

WORD: Final = 0xFFFFFFFF
_KEY: Final = 0xFFFFFFFF_FFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_FEW_BLOCKS: Final = 8
MOST_SOURCES: Final = 16
"""Maximum drafters of a merged tree; each has its own noise."""


class Purpose(enum.IntEnum):
    """Purpose of a number, in the low bits of the counter's last word."""

    CHOICE = 0
    DRAFT = 1
    ACCEPT = 2
    FINAL = 3


def counter_word(purpose: Purpose, choice: int, source: int = 0) -> int:
    """Make the last counter word: purpose in bits 0-3, drafter in bits 4-7, choice index (of ``n``) above."""
    if not 0 <= source < MOST_SOURCES:
        raise ValueError(
            f"a merged tree has at most {MOST_SOURCES} drafters, so there is no noise for drafter {source}"
        )
    return (purpose | source << 4 | choice << 8) & WORD


def philox_words(seed: int, words: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Compute the four 32-bit words of one counter, whose least significant word comes first."""
    if cpu is None:
        return reference(seed, words)
    found: tuple[int, int, int, int] = cpu.philox(seed & _KEY, *words)
    return found


def reference(seed: int, words: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The specification of :func:`philox_words`, in plain integers."""
    c0, c1, c2, c3 = words
    k0, k1 = seed & WORD, (seed >> 32) & WORD
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + _WEYL[0]) & WORD, (k1 + _WEYL[1]) & WORD
    return c0, c1, c2, c3


def philox_blocks(seed: int, first: torch.Tensor, words: tuple[int, int, int]) -> torch.Tensor:
    """Compute the words of counters that differ only in their first word, int64 [N].

    Returns:
        int64 [N, 4], each value a 32-bit word.
    """
    # 32 x 32 bit products fit 64 bits; int64 wraps in two's complement, so masking after the shift is exact.
    c0 = first & WORD
    c1, c2, c3 = (torch.full_like(c0, word) for word in words)
    k0, k1 = seed & WORD, (seed >> 32) & WORD
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((p1 >> 32) & WORD) ^ c1 ^ k0, p1 & WORD
        c2, c3 = ((p0 >> 32) & WORD) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + _WEYL[0]) & WORD, (k1 + _WEYL[1]) & WORD
    return torch.stack((c0, c1, c2, c3), dim=1)


def uniform(seed: int, words: tuple[int, int, int, int]) -> float:
    """A number in [0, 1) with 53 random bits."""
    low, high, _, _ = philox_words(seed, words)
    return ((high << 21) | (low >> 11)) * 2.0**-53


def gumbel_from_words(words: torch.Tensor) -> torch.Tensor:
    """Make standard Gumbel noise, float64, from 32-bit words.

    ``-log E`` with ``E = -log1p(-(x + 1/2) / 2**32)``.  The largest values, which win, have the finest resolution,
    2**-33, and none is infinite.
    """
    exponential = -torch.log1p(-(words.double() + 0.5) * 2.0**-32)
    return -torch.log(exponential)


def gumbel(seed: int, token_ids: torch.Tensor, words: tuple[int, int, int]) -> torch.Tensor:
    """Gumbel noise of token ids, int64 [N] → float64 [N]; token ``t`` reads word ``t % 4`` of block ``t // 4``."""
    blocks = philox_blocks(seed, token_ids >> 2, words)
    return gumbel_from_words(blocks.gather(1, (token_ids & 3).unsqueeze(1)).squeeze(1))


def gumbel_range(seed: int, count: int, words: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    """Gumbel noise of the token ids 0 … count − 1, float64 [count]: one Philox block serves four tokens."""
    blocks = (count + 3) >> 2
    if blocks <= _FEW_BLOCKS:  # for so little, plain integers are faster than tensor operations
        words_of = [word for block in range(blocks) for word in philox_words(seed, (block, *words))]
        return gumbel_from_words(torch.tensor(words_of[:count], dtype=torch.int64, device=device))
    first = torch.arange(blocks, dtype=torch.int64, device=device)
    return gumbel_from_words(philox_blocks(seed, first, words).reshape(-1)[:count])


def choice_words(position: int, choice: int) -> tuple[int, int, int]:
    """Counter words of the target's choice at an absolute position."""
    return position & WORD, choice & WORD, int(Purpose.CHOICE)
