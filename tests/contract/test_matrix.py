"""Every request feature with every drafting method; ``docs/matrix.md`` shows these cells and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract import matrix

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"


@pytest.mark.parametrize("feature", matrix.CHECKS)
@pytest.mark.parametrize("method", matrix.columns())
def test_the_answer_is_plain_decodings(method: str, feature: str) -> None:
    assert matrix.CHECKS[feature](matrix.columns()[method])


def test_the_page_shows_the_cells_that_are_tested() -> None:
    head, _, *rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [word.strip(" `") for word in head.split("|")[2:-1]] == list(matrix.columns())
    assert [row.split("|")[1].strip(" `") for row in rows] == list(matrix.CHECKS)
    assert all(set(row.split("|")[2:-1]) == {" ● "} for row in rows)


def test_a_wrong_answer_would_be_seen() -> None:
    """Negative control: the facts of two different requests differ."""
    assert matrix.plain("temperature, seed") != matrix.plain("greedy")
