"""The automaton against brute force: every substring, every count, every match."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters._corpora import BYTES_PER_TOKEN, Corpora
from outrider.drafters._prediction import PredictionCursor
from outrider.drafters._suffix_automaton import ROOT, SuffixAutomaton
from outrider.drafters.suffix import Suffix, SuffixDrafter, _Text

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def state_of(automaton: SuffixAutomaton, part: list[int]) -> int | None:
    state = ROOT
    for token in part:
        if token not in automaton.following[state]:
            return None
        state = automaton.following[state][token]
    return state


def occurrences(text: list[int], part: list[int]) -> int:
    return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


@given(texts, texts)
def test_it_knows_exactly_the_substrings_and_their_counts(text: list[int], other: list[int]) -> None:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    parts = [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)]
    for part in [*parts, other]:
        state = state_of(automaton, part)
        assert (state is not None) == (occurrences(text, part) > 0)
        if state is not None:
            assert automaton.count[state] == occurrences(text, part)


@given(texts)
def test_the_link_of_the_end_is_the_longest_suffix_seen_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    longest = max((n for n in range(len(text)) if occurrences(text, text[len(text) - n :]) > 1 and n), default=0)
    assert automaton.length[automaton.link[automaton.last]] == longest


@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_stepping_finds_the_longest_suffix_of_another_text(stored: list[list[int]], text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for one in stored:
        automaton.extend([-1, *one])
    state, length = ROOT, 0
    for end, token in enumerate(text, start=1):
        state, length = automaton.step(state, length, token)
        longest = max(
            n for n in range(end + 1) if n == 0 or any(occurrences(one, text[end - n : end]) for one in stored)
        )
        assert length == longest


@given(st.lists(texts, min_size=2, max_size=5), texts)
def test_a_match_is_remembered_while_the_corpus_grows(stored: list[list[int]], text: list[int]) -> None:
    """Growth splits classes; a remembered state must still stand for the matched suffix."""
    corpus, request = SuffixAutomaton(), _Text(prompt_length=0, salt=None, cursor=PredictionCursor((), 0))
    for round_number, one in enumerate(stored):
        corpus.extend([-1, *one])
        cut = len(text) * (round_number + 1) // len(stored)
        request.catch_up(text[:cut], [corpus])
        _, state, length = request.shared[id(corpus)]
        known = stored[: round_number + 1]
        longest = max(n for n in range(cut + 1) if n == 0 or any(occurrences(k, text[cut - n : cut]) for k in known))
        # What was matched before an output arrived may have become longer in it; that is found when it ends anew.
        assert length <= longest
        assert state == (state_of(corpus, text[cut - length : cut]) if length else ROOT)


def test_appending_costs_the_same_at_any_length() -> None:
    """Counted in states and steps, not in seconds: one token adds at most two states."""
    automaton = SuffixAutomaton()
    for n in range(1, 5000):
        automaton.extend([n * n % 7])
        assert len(automaton.length) <= 2 * n + 1


def test_a_corpus_is_bounded_by_its_promise() -> None:
    corpora = Corpora(megabytes=1)
    tracemalloc.start()
    for n in range(400):
        corpora.add(None, [(n * 31 + i * i) % 5000 for i in range(50)])
        assert corpora.tokens * BYTES_PER_TOKEN <= 2**20
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(half.tokens for half in corpora.halves(None)) > 200
    assert used <= corpora.tokens * BYTES_PER_TOKEN


def test_many_corpora_are_bounded_together() -> None:
    corpora = Corpora(megabytes=1)
    tracemalloc.start()
    for n in range(3000):
        corpora.add(f"salt {n}", [(n * 31 + i * i) % 5000 for i in range(n % 3 + 1)])
        assert corpora.tokens * BYTES_PER_TOKEN <= 2**20
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used <= corpora.tokens * BYTES_PER_TOKEN
    assert corpora.halves("salt 2999")
    assert not corpora.halves("salt 0"), "nothing was dropped"


def test_the_corpus_that_was_not_used_for_longest_is_dropped() -> None:
    corpora = Corpora(megabytes=1)
    for name in ("a", "b"):
        corpora.add(name, list(range(100)))
    corpora.halves("a")
    for length in (400, 300):
        corpora.add("c", list(range(length)))
    assert corpora.halves("a")
    assert not corpora.halves("b")


def test_without_memory_nothing_outlives_its_request() -> None:
    drafter = SuffixDrafter(Suffix())
    drafter.corpora.add(None, [1, 2, 3])
    assert drafter.corpora.halves(None) == []


@pytest.mark.parametrize("megabytes", [1, 2])
def test_an_output_longer_than_half_the_corpus_is_cut(megabytes: int) -> None:
    corpora = Corpora(megabytes)
    corpora.add(None, list(range(5000)))
    assert 0 < corpora.tokens * BYTES_PER_TOKEN <= megabytes * 2**20
