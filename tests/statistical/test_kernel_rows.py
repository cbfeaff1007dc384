"""Tokens the kernels choose from many rows: the specification's, but for roundings at a tie or a nucleus's edge."""

from __future__ import annotations

from collections import Counter

import pytest
from row_judge import EDGE, ULPS, cases, judge

from outrider.kernels.native import cpu, missing
from outrider.sampling.best import best_scores

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")

GROUP = 50
WHOLE = 151_936


def compare(count: int, vocabularies: tuple[int, ...], group: int = GROUP) -> Counter[str]:
    found: Counter[str] = Counter()
    for logits, temperature, truncation, noise in cases(vocabularies, group):
        if found.total() >= count:
            break
        tokens, _ = best_scores(logits, logits.shape[1], temperature, noise, 1, truncation)
        found += judge(logits, temperature, truncation, noise, tokens[:, 0])
    return found


def report(found: Counter[str]) -> str:
    return (
        f"{found.total()} rows compared, {found['allowed']} differ where two scores are within {ULPS} ulp "
        f"or a mass within {EDGE:g} of top_p, {found['wrong']} differ elsewhere"
    )


@pytest.mark.parametrize(
    ("count", "vocabularies", "group"),
    [(6000, (1000, 2500, 4099, 321), GROUP), (66, (32_000, WHOLE), 2)],
    ids=["small", "whole"],
)
def test_tokens_are_the_specifications(count: int, vocabularies: tuple[int, ...], group: int) -> None:
    found = compare(count, vocabularies, group)
    print(report(found))
    assert found["wrong"] == 0, report(found)
    assert found["allowed"] <= 2e-3 * found.total()


def test_the_judge_sees_a_wrong_token() -> None:
    logits, temperature, truncation, noise = next(cases((1000,), GROUP))
    tokens, _ = best_scores(logits, logits.shape[1], temperature, noise, 2, truncation)
    assert judge(logits, temperature, truncation, noise, tokens[:, 1])["wrong"] == GROUP


@pytest.mark.thorough
def test_a_million_rows() -> None:
    """A thousand rows of a whole vocabulary, the others of some thousands."""
    found = compare(999_000, (1000, 2500, 4099, 321)) + compare(1000, (WHOLE, 128_256, 32_000), 4)
    print(report(found))
    assert found.total() >= 1_000_000
    assert found["wrong"] == 0
