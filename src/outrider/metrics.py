"""Metrics: acceptance rate by position, accepted length, and where the time goes."""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from outrider.verify.base import Verdict

FEWEST_ONE_ROW_ROUNDS: Final = 8
"""Minimum one-row rounds for the cost of a plain round; with fewer, one slow round matters too much."""
_LATEST: Final = 256
"""Number of the latest one-row rounds whose median is used."""
_ROUNDING: Final = 1e-6


def predicted_speedup(acceptance: Sequence[float], cost: float, verify: float = 1.0) -> float:
    """Predict the speedup over plain decoding from acceptance and drafting cost.

    With one rate for every position it is ``(1 − α^(γ+1)) / ((1 − α)(γc + 1))`` (Leviathan et al. 2023, theorem 3.8);
    here each position has its own rate.

    Args:
        acceptance: conditional acceptance rate at each draft position; its length is γ.
        cost: time of a draft step ÷ time of a target pass (c).
        verify: time of a verify pass ÷ time of a plain pass; the formula assumes 1.
    """
    expected, survival = 1.0, 1.0
    for rate in acceptance:
        survival *= rate
        expected += survival
    return expected / (len(acceptance) * cost + verify)


@dataclass
class SpeculationStats:
    """Counts of drafts over all rounds that decode; rounds of prompts only are left out."""

    rounds: int = 0
    """Rounds that decoded."""
    emitted: int = 0
    """Emitted tokens."""
    drafted: list[int] = field(default_factory=list)
    """Draft tokens, by depth."""
    tested: list[int] = field(default_factory=list)
    """Rounds that tested a draft at this depth, by depth."""
    accepted: list[int] = field(default_factory=list)
    """Rounds that accepted a draft at this depth, by depth."""
    levels: int = 0
    """Draft steps: the depths of all trees, summed."""
    forced: int = 0
    """Accepted tokens that a grammar forced; drafters did not propose them, so they count nowhere else but here."""

    def add(self, verdict: Verdict) -> None:
        """Count one round."""
        self.rounds += 1
        self.emitted += len(verdict.tokens)
        self.levels += len(verdict.drafted)
        self.forced += verdict.forced
        self._add_counts(verdict)

    def merge(self, other: SpeculationStats) -> None:
        """Add another request's counts, which its engine's thread may go on writing."""
        self.rounds += other.rounds
        self.emitted += other.emitted
        self.levels += other.levels
        self.forced += other.forced
        kept = SpeculationStats(drafted=[*other.drafted], tested=[*other.tested], accepted=[*other.accepted])
        self._add_counts(kept)

    def _add_counts(self, other: SpeculationStats | Verdict) -> None:
        mine, added = (self.drafted, self.tested, self.accepted), (other.drafted, other.tested, other.accepted)
        for total, part in zip(mine, added, strict=True):
            total += [0] * (len(part) - len(total))
            for depth, count in enumerate(part):
                total[depth] += count

    @property
    def acceptance_rate(self) -> float:
        """α: accepted ÷ *tested* drafts over all positions; 0 if nothing was tested."""
        return sum(self.accepted) / total if (total := sum(self.tested)) else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """α at each depth: accepted ÷ tested drafts there."""
        accepted = self.accepted + [0] * (len(self.tested) - len(self.accepted))
        return [a / t if t else 0.0 for a, t in zip(accepted, self.tested, strict=False)]

    @property
    def mean_accepted_length(self) -> float:
        """τ: tokens per round, the bonus token included; plain decoding has 1."""
        return self.emitted / self.rounds if self.rounds else 0.0


@dataclass
class RowCosts:
    """Cost of decoding rounds by rows, without drafting: the verify curve t(rows) of a run."""

    rounds: dict[int, int] = field(default_factory=dict)
    """Number of rounds, by rows."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Their seconds, by rows."""
    latest: list[float] = field(default_factory=list)
    """Seconds of the latest one-row rounds, oldest first."""

    def add(self, rows: int, seconds: float) -> None:
        """Count one round."""
        if rows == 1:
            self.latest.append(seconds)
            del self.latest[:-_LATEST]
        self.rounds[rows] = self.rounds.get(rows, 0) + 1
        self.seconds[rows] = self.seconds.get(rows, 0.0) + seconds

    def mean(self, rows: int) -> float:
        """Mean seconds of a round with this number of rows, of which there must be one."""
        return self.seconds[rows] / self.rounds[rows]

    @property
    def one_row(self) -> float:
        """Median seconds of the latest one-row rounds, of which there must be one; robust against load."""
        return median(self.latest)

    def __add__(self, other: RowCosts) -> RowCosts:
        """The rounds of both."""
        return self._merged(other, 1, [*self.latest, *other.latest])

    def __sub__(self, before: RowCosts) -> RowCosts:
        """The rounds since ``before`` was copied."""
        since = self.rounds.get(1, 0) - before.rounds.get(1, 0)
        return self._merged(before, -1, self.latest[max(0, len(self.latest) - since) :])

    def __repr__(self) -> str:
        """Rounds and their mean time by rows."""
        means = ", ".join(f"{rows}: {self.mean(rows):.4g} s × {count}" for rows, count in sorted(self.rounds.items()))
        return f"RowCosts({means})"

    def copy(self) -> RowCosts:
        """An independent copy."""
        return RowCosts(dict(self.rounds), dict(self.seconds), self.latest.copy())

    def _merged(self, other: RowCosts, sign: int, latest: Sequence[float]) -> RowCosts:
        rows = sorted(self.rounds.keys() | other.rounds.keys())
        counts = {n: self.rounds.get(n, 0) + sign * other.rounds.get(n, 0) for n in rows}
        kept = {n: count for n, count in counts.items() if count}
        seconds = {n: self.seconds.get(n, 0.0) + sign * other.seconds.get(n, 0.0) for n in kept}
        return RowCosts(kept, seconds, list(latest[-_LATEST:]))


@dataclass(frozen=True)
class RowKinds:
    """Numbers of rows by their purpose."""

    prompt: int = 0
    """Prompt rows, with the row that gives the first token."""
    decode: int = 0
    """Anchors of decoding requests, which plain decoding computes, too."""
    draft: int = 0
    """Accepted drafts."""
    wasted: int = 0
    """Rejected drafts."""

    @property
    def total(self) -> int:
        """All rows."""
        return sum(vars(self).values())

    def __add__(self, other: RowKinds) -> RowKinds:
        """The rows of both."""
        return RowKinds(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, before: RowKinds) -> RowKinds:
        """The rows since ``before``."""
        return RowKinds(*map(operator.sub, vars(self).values(), vars(before).values()))


@dataclass(frozen=True)
class RoundStats:
    """The rows, tokens and seconds of one round."""

    rows: RowKinds
    tokens: int
    """Tokens of decoding requests; a prompt's first token is left out."""
    draft: float
    """Seconds of drafters."""
    verify: float
    """Seconds of the target's forward pass."""
    other: float
    """Seconds of scheduling, sampling, acceptance, commits and text."""

    @property
    def seconds(self) -> float:
        """All seconds of the round."""
        return self.draft + self.verify + self.other


class Clock:
    """Times the stages of a round: ``with clock("draft"): ...``; stages of one name add up."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}

    def __call__(self, stage: str) -> _Stage:
        """A context that adds its time to a stage."""
        if stage not in self._stages:
            self._stages[stage] = _Stage()
        return self._stages[stage]

    def restart(self) -> None:
        """Begin a round: reset all stages."""
        for stage in self._stages.values():
            stage.seconds = 0.0

    def seconds(self, stage: str) -> float:
        """Seconds of a stage in this round."""
        return self(stage).seconds

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(stage.seconds for stage in self._stages.values())


class _Stage:
    """One stage's time; kept from round to round, so that timing allocates nothing."""

    __slots__ = ("_begun", "seconds")

    def __init__(self) -> None:
        self.seconds, self._begun = 0.0, 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._begun


@dataclass
class PhaseSeconds:
    """The engine's time by phase, with its rounds, tokens and rows."""

    prefill: float = 0.0
    """Rounds with prompts only, in all."""
    mixed: float = 0.0
    """Rounds that decoded requests and also computed a prompt's chunk, in all."""
    draft: float = 0.0
    """Drafting, in rounds that only decode."""
    verify: float = 0.0
    """Forward passes of the target, in rounds that only decode."""
    other: float = 0.0
    """Everything else in rounds that only decode: scheduling, sampling, acceptance, commits, text."""
    rounds: int = 0
    """Number of rounds that only decode."""
    tokens: int = 0
    """Tokens of these rounds, over all requests."""
    mixed_tokens: int = 0
    """Tokens decoded in mixed rounds."""
    rows: RowKinds = RowKinds()
    """Rows of all rounds, by kind."""
    by_rows: RowCosts = field(default_factory=RowCosts)
    """``verify`` and ``other`` of rounds that only decode, by rows."""

    def add(self, stats: RoundStats) -> None:
        """Count one round."""
        self.rows += stats.rows
        if not stats.rows.prompt:
            self.by_rows.add(stats.rows.total, stats.verify + stats.other)
            self.rounds += 1
            self.tokens += stats.tokens
            self.draft += stats.draft
            self.verify += stats.verify
            self.other += stats.other
        elif stats.rows.decode:
            self.mixed += stats.seconds
            self.mixed_tokens += stats.tokens
        else:
            self.prefill += stats.seconds

    @property
    def tokens_per_second(self) -> float:
        """Throughput of decoding over all requests, mixed rounds included."""
        seconds = self.decode + self.mixed
        return (self.tokens + self.mixed_tokens) / seconds if seconds else 0.0

    def __repr__(self) -> str:
        """Seconds by phase, rounds and tokens."""
        named = ("prefill", *(("mixed",) if self.mixed else ()), "draft", "verify", "other")
        phases = ", ".join(f"{name}={getattr(self, name):.4g}" for name in named)
        return f"PhaseSeconds({phases}, rounds={self.rounds}, tokens={self.tokens})"

    @property
    def decode(self) -> float:
        """Seconds of rounds that only decode."""
        return self.draft + self.verify + self.other

    def copy(self) -> PhaseSeconds:
        """An independent copy."""
        return replace(self, by_rows=self.by_rows.copy())

    def minus(self, before: PhaseSeconds) -> PhaseSeconds:
        """The difference to an earlier copy."""
        return PhaseSeconds(*map(operator.sub, vars(self).values(), vars(before).values()))


def rates_per_round(stats: SpeculationStats) -> list[float]:
    """Acceptance rate at each depth, given that the previous depth was accepted, over all rounds."""
    reached = [stats.rounds, *stats.accepted]
    rates = [later / earlier if earlier else 0.0 for earlier, later in pairwise(reached)]
    return rates + [0.0] * (len(stats.drafted) - len(rates))


def decoded_alone(stats: SpeculationStats, seconds: PhaseSeconds) -> bool:
    """Whether all timed rounds decoded only this sequence."""
    return (seconds.rounds, seconds.tokens) == (stats.rounds, stats.emitted)


@dataclass(frozen=True)
class Prediction:
    """The estimated speedup of a run, from its own acceptance and costs, without a plain run."""

    cost_coefficient: float
    """c: seconds of one draft step ÷ seconds of one target pass, in these rounds."""
    one_row: float | None
    """Seconds of a plain round: the median of the one-row rounds; None if there are too few."""
    speedup: float | None
    """Estimated seconds of plain decoding, one one-row round per token, ÷ seconds of these rounds, drafting included.
    None if ``one_row`` is None, or if the result exceeds the tokens per round, which is impossible: other work then
    slowed some of the rounds down."""

    def __repr__(self) -> str:
        """The values, rounded."""
        told = ", ".join(f"{name}={value if value is None else f'{value:.4g}'}" for name, value in vars(self).items())
        return f"Prediction({told})"

    @classmethod
    def of(cls, stats: SpeculationStats, seconds: PhaseSeconds, plain: RowCosts | None = None) -> Prediction | None:
        """Estimate the speedup of a run; None if nothing was drafted.

        Args:
            stats: counts of one prompt's drafts.
            seconds: time of the rounds that decoded it.  If other requests shared them, the speedup is unknown.
            plain: more one-row rounds, in addition to those of ``seconds``.
        """
        if not (stats.levels and seconds.rounds and seconds.verify):
            return None
        step = seconds.draft / stats.levels / (seconds.verify / seconds.rounds)
        costs = seconds.by_rows if plain is None else seconds.by_rows + plain
        if not decoded_alone(stats, seconds) or costs.rounds.get(1, 0) < FEWEST_ONE_ROW_ROUNDS:
            return cls(step, None, None)
        speedup, most = seconds.tokens * costs.one_row / seconds.decode, stats.mean_accepted_length
        return cls(step, costs.one_row, min(speedup, most) if speedup <= most * (1 + _ROUNDING) else None)
