"""Stop strings against the naive rule: decode after every token, look for the first completed stop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.requests.stopping import FinishReason, Stopper
from outrider.sampling.params import SamplingParams


class Pieces:
    """A stream whose tokens are indices into a list of texts."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def fork(self) -> Pieces:
        return self


def naive(pieces: list[str], tokens: list[int], stops: list[str], least: int) -> tuple[int, str, str | None]:
    """Tokens taken, text, stop string."""
    text = ""
    for count, token in enumerate(tokens, start=1):
        before, text = text, text + pieces[token]
        if count < least:
            continue
        ends = [
            (end, end - len(stop), stop)
            for stop in stops
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(stop)
        ]
        if ends:
            _, start, stop = min(ends)
            return count, text[:start], stop
    return len(tokens), text, None


alphabet = st.text("ab.", min_size=0, max_size=3)


@given(st.data())
def test_stops_in_blocks_of_any_size(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(alphabet, min_size=1, max_size=5))
    tokens = data.draw(st.lists(st.integers(0, len(pieces) - 1), min_size=1, max_size=20))
    stops = data.draw(st.lists(st.text("ab.", min_size=1, max_size=4), min_size=0, max_size=3, unique=True))
    least = data.draw(st.integers(0, 5))
    count, text, stop = naive(pieces, tokens, stops, least)

    params = SamplingParams(max_tokens=100, stop=tuple(stops), min_tokens=least)
    stopper = Stopper(params, frozenset(), 100, Pieces(pieces))
    taken, shown, reason = 0, "", None
    while taken < len(tokens) and reason is None:
        size = data.draw(st.integers(1, 6))
        part, stopper = stopper.take(tokens[taken : taken + size])
        taken, shown, reason = taken + part.count, shown + part.text, part.finish_reason
        last = part
    if reason is None:
        assert (taken, stop) == (len(tokens), None)
        assert text.startswith(shown)
        assert any(one.startswith(text[len(shown) :]) for one in stops) or shown == text
    else:
        assert (taken, shown, last.stop_reason) == (count, text, stop)
        assert reason is FinishReason.STOP


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 8), st.integers(1, 4))
def test_budget_and_end_tokens(tokens: list[int], budget: int, size: int) -> None:
    stopper = Stopper(SamplingParams(), frozenset({3}), budget, Pieces(["x", "y", "z", "<end>"]))
    taken: list[int] = []
    reason = None
    for start in range(0, len(tokens), size):
        part, stopper = stopper.take(tokens[start : start + size])
        taken += tokens[start : start + part.count]
        reason = part.finish_reason
        if reason is not None:
            break
    expected = tokens[: tokens.index(3) + 1] if 3 in tokens else tokens
    assert taken == expected[:budget]
    if 3 in expected[:budget]:
        assert reason is FinishReason.STOP
    elif tokens and len(tokens) >= budget:
        assert reason is FinishReason.LENGTH
