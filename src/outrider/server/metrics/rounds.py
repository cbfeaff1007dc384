"""What the engine has done since the server started, counted after every round and read by other threads."""

from __future__ import annotations

import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple

from outrider.engine.engine import Engine
from outrider.metrics import FEWEST_ONE_ROW_ROUNDS, PhaseSeconds, RoundStats, RowCosts, RowKinds
from outrider.requests.turn import Turn

TOKEN_BOUNDS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets for tokens per round; those of vLLM."""
WINDOW: Final = 60.0
"""Seconds that the recent figures cover."""
_TICK: Final = 1.0
"""Seconds between two kept figures; a window may be longer by as much."""

_Counts = tuple[int, ...]


class StageSeconds(NamedTuple):
    """Seconds of all rounds; the names are those of :class:`outrider.metrics.PhaseSeconds`."""

    prefill: float = 0.0
    mixed: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0


class Load(NamedTuple):
    """Draft budgets of the decoding rounds with about as many running requests."""

    rounds: int = 0
    """Rounds of the engine."""
    turns: int = 0
    """Turns that decoded."""
    granted: int = 0
    """Draft rows that the controller granted to them."""
    drafted: int = 0
    """Draft rows that they used."""


class RoundFigures(NamedTuple):
    """Totals since the start, after one round.  It never changes, so any thread may read it."""

    time: float = 0.0
    """When the round ended, by the totals' clock."""
    passes: int = 0
    """Rounds of the engine: forward passes of the target."""
    turns: int = 0
    """Decoding rounds of all requests, each request's own."""
    emitted: int = 0
    """Emitted tokens, first tokens included."""
    decoded: int = 0
    """Emitted tokens of ``turns``."""
    prompt_tokens: int = 0
    """Tokens of the prompts that were computed to their end."""
    cached_tokens: int = 0
    """Those of them that came from the prefix cache."""
    depths: _Counts = ()
    """Draft trees, by depth."""
    branches: _Counts = ()
    """Draft tokens beside the first one of their position, by position; chains have none."""
    tests: _Counts = ()
    """Draft trees, by the number of positions that were tested."""
    acceptances: _Counts = ()
    """Draft trees, by the number of accepted tokens."""
    rows: RowKinds = RowKinds()
    """Rows by kind."""
    seconds: StageSeconds = StageSeconds()
    """Seconds by stage."""
    loads: tuple[Load, ...] = ()
    """Draft budgets by running requests: 1, 2, 3 to 4, 5 to 8, and so on."""
    tokens_per_round: _Counts = (0,) * (len(TOKEN_BOUNDS) + 1)
    """Rounds by their prompt rows and emitted tokens, in the buckets of ``TOKEN_BOUNDS`` and one above."""
    tokens_of_rounds: int = 0
    """Sum of what ``tokens_per_round`` counts."""
    spent: float = 0.0
    """Seconds of the rounds that count in ``plain``, drafting included."""
    plain: float = 0.0
    """Estimated seconds that plain decoding needs for the tokens of these rounds."""

    @property
    def drafts(self) -> int:
        """Draft trees."""
        return sum(self.depths)

    @property
    def drafted(self) -> list[int]:
        """Draft tokens, by position."""
        return [sum(pair) for pair in zip_longest(_longer(self.depths), self.branches, fillvalue=0)]

    @property
    def tested(self) -> list[int]:
        """Draft trees that were tested at a position, by position."""
        return _longer(self.tests)

    @property
    def accepted(self) -> list[int]:
        """Accepted draft tokens, by position."""
        return _longer(self.acceptances)


class RecentFigures(NamedTuple):
    """Rates over the latest rounds; a rate is None if nothing was counted."""

    acceptance_rate: float | None
    """α: accepted ÷ tested drafts."""
    accepted_length: float | None
    """τ: tokens per decoding round of a request, the bonus token included."""
    speedup: float | None
    """Estimated seconds of plain decoding ÷ seconds spent."""
    draft_rows: dict[int, float]
    """Mean draft rows of a decoding round, by the most running requests of each bucket."""
    budget: dict[int, float]
    """Mean draft rows that the controller granted per request and round, likewise."""


class RoundTotals:
    """Counts every round on the engine's thread, for readers on other threads.

    After each round it makes one immutable :class:`RoundFigures` and replaces the last one with it.  A reader takes the
    reference, which is a single atomic read, and so has the figures of one round.  Nobody holds a lock, so a slow
    reader never delays a round.

    Args:
        clock: seconds, as :func:`time.monotonic` gives them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine: weakref.ref[Engine] | None = None
        self._seconds = PhaseSeconds()
        self._figures = RoundFigures(time=clock())
        self._history: tuple[RoundFigures, ...] = (self._figures,)
        """Figures about a second apart, the oldest from before the window; replaced as a whole."""
        # Counting lengths takes a tenth of the time of adding up positions.
        self._depths, self._tests, self._acceptances = [0], [0], [0]
        self._branches: list[int] = []
        self._loads: list[Load] = []
        self._buckets = [0] * (len(TOKEN_BOUNDS) + 1)
        self._plain_rounds: dict[int, float | None] = {}
        """Seconds of a plain round, by requests; kept for a tick."""

    def attach(self, engine: Engine) -> None:
        """Observe an engine from its next round on; call it between two rounds.

        Args:
            engine: is not kept alive.
        """
        self._engine, self._seconds = weakref.ref(engine), engine.seconds
        engine.observers.append(self)

    @property
    def engine(self) -> Engine | None:
        """The engine; None before it is attached and after it was freed."""
        return None if self._engine is None else self._engine()

    @property
    def figures(self) -> RoundFigures:
        """The totals after the latest round."""
        return self._figures

    @property
    def row_costs(self) -> RowCosts:
        """Cost of decoding rounds by rows, which the engine's thread goes on writing."""
        return self._seconds.by_rows

    @property
    def one_row_seconds(self) -> float | None:
        """Median seconds of the latest one-row rounds; None while there are too few."""
        latest = self.row_costs.latest.copy()  # one atomic copy, which the engine's thread cannot change
        return RowCosts(latest=latest).one_row if len(latest) >= FEWEST_ONE_ROW_ROUNDS else None

    def recent(self, seconds: float = WINDOW) -> RecentFigures:
        """Rates over the latest rounds.

        Args:
            seconds: how far to look back, at most ``WINDOW``.
        """
        figures, since = self._figures, self._clock() - seconds
        known = (*self._history, figures)
        return _rates(figures, next((each for each in reversed(known) if each.time <= since), RoundFigures()))

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        last, now = self._figures, self._clock()
        if now - self._history[-1].time >= _TICK:
            self._tick(last, now)
        prompts, cached, first_tokens = self._take(turns, stats)
        rows, seconds = stats.rows, self._seconds
        tokens = stats.tokens + first_tokens
        self._buckets[bisect_left(TOKEN_BOUNDS, rows.prompt + tokens)] += 1
        plain = self._plain(rows, stats.tokens)
        self._figures = RoundFigures(
            now,
            last.passes + 1,
            last.turns + rows.decode,
            last.emitted + tokens,
            last.decoded + stats.tokens,
            last.prompt_tokens + prompts,
            last.cached_tokens + cached,
            tuple(self._depths),
            tuple(self._branches),
            tuple(self._tests),
            tuple(self._acceptances),
            seconds.rows,
            StageSeconds(seconds.prefill, seconds.mixed, seconds.draft, seconds.verify, seconds.other),
            tuple(self._loads),
            tuple(self._buckets),
            last.tokens_of_rounds + rows.prompt + tokens,
            last.spent + (stats.seconds if plain else 0.0),
            last.plain + plain,
        )

    def _take(self, turns: Sequence[Turn], stats: RoundStats) -> tuple[int, int, int]:
        """Count the turns; return the tokens of completed prompts, those found in the cache, and the first tokens."""
        depths, tests, acceptances = self._depths, self._tests, self._acceptances
        nodes = levels = prompts = cached = first_tokens = 0
        for turn in turns:
            verdict = turn.verdict
            if not turn.decodes:
                rows = _prompt(turn)
                prompts, cached, first_tokens = prompts + rows[0], cached + rows[1], first_tokens + rows[2]
                continue
            nodes += turn.budget.nodes
            if verdict is not None and (depth := len(verdict.drafted)):
                if depth >= len(depths):
                    self._grow(depth)
                levels += depth
                depths[depth] += 1
                tests[len(verdict.tested)] += 1
                acceptances[len(verdict.accepted)] += 1
        drafted = stats.rows.draft + stats.rows.wasted
        if drafted != levels:
            self._add_branches(turns)
        if decoding := stats.rows.decode:
            self._load(len(turns), decoding, nodes - decoding, drafted)
        return prompts, cached, first_tokens

    def _grow(self, depth: int) -> None:
        """Make room for trees of this depth; what is tested and accepted is no deeper."""
        for lengths in (self._depths, self._tests, self._acceptances):
            lengths += [0] * (depth + 1 - len(lengths))

    def _add_branches(self, turns: Sequence[Turn]) -> None:
        """Count draft tokens beside the first one of their position."""
        for turn in turns:
            for position, count in enumerate(turn.verdict.drafted if turn.verdict else ()):
                if position == len(self._branches):
                    self._branches.append(0)
                self._branches[position] += count - 1

    def _load(self, running: int, turns: int, granted: int, drafted: int) -> None:
        place = (running - 1).bit_length()
        while len(self._loads) <= place:
            self._loads.append(Load())
        old = self._loads[place]
        self._loads[place] = Load(old.rounds + 1, old.turns + turns, old.granted + granted, old.drafted + drafted)

    def _plain(self, rows: RowKinds, tokens: int) -> float:
        """Estimated seconds of plain decoding for the tokens of a round; 0 if it is not known."""
        if rows.prompt or not rows.decode:
            return 0.0
        if rows.decode not in self._plain_rounds:
            self._plain_rounds[rows.decode] = self._plain_round(rows.decode)
        return (self._plain_rounds[rows.decode] or 0.0) * tokens / rows.decode

    def _plain_round(self, requests: int) -> float | None:
        """Seconds of a plain round: one row per request."""
        if requests == 1:
            return self.one_row_seconds
        costs = self.row_costs
        return costs.mean(requests) if costs.rounds.get(requests, 0) >= FEWEST_ONE_ROW_ROUNDS else None

    def _tick(self, last: RoundFigures, now: float) -> None:
        """Keep the figures of the last round, and forget what the window does not need."""
        history, since = (*self._history, last), now - WINDOW
        oldest = max((place for place, each in enumerate(history) if each.time <= since), default=0)
        self._history = history[oldest:]
        self._plain_rounds.clear()


def _prompt(turn: Turn) -> tuple[int, int, int]:
    """Tokens of the prompt, if the turn completes it, how many were cached, and the tokens after it."""
    request, verdict = turn.request, turn.verdict
    if verdict is None:
        return 0, 0, 0
    emitted = len(verdict.tokens)
    # A preempted request computes its prompt again: then earlier rounds have emitted tokens, too.
    if len(request.inputs) > request.prompt_length + emitted:
        return 0, 0, emitted
    return request.prompt_length, request.cached_tokens or 0, emitted


def _longer(lengths: Sequence[int]) -> list[int]:
    """How many are longer than 0, 1, 2 and so on, of counts by length."""
    return list(accumulate(reversed(lengths[1:])))[::-1]


def bucket_bound(place: int) -> int:
    """The most running requests of a bucket of ``RoundFigures.loads``."""
    return 1 << place


def _rates(now: RoundFigures, before: RoundFigures) -> RecentFigures:
    tested, turns = sum(now.tested) - sum(before.tested), now.turns - before.turns
    spent = now.spent - before.spent
    draft_rows, budget = {}, {}
    for place, (new, old) in enumerate(zip_longest(now.loads, before.loads, fillvalue=Load())):
        if new.turns > old.turns:
            draft_rows[bucket_bound(place)] = (new.drafted - old.drafted) / (new.rounds - old.rounds)
            budget[bucket_bound(place)] = (new.granted - old.granted) / (new.turns - old.turns)
    return RecentFigures(
        acceptance_rate=(sum(now.accepted) - sum(before.accepted)) / tested if tested else None,
        accepted_length=(now.decoded - before.decoded) / turns if turns else None,
        speedup=(now.plain - before.plain) / spent if spent > 0.0 else None,
        draft_rows=draft_rows,
        budget=budget,
    )
