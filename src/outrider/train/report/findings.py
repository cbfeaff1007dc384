"""The results of a training, as text, plot and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from outrider.train.evaluation.held_out import Evaluation
from outrider.train.report.curve import Outlook, outlook
from outrider.train.report.plot import picture
from outrider.train.report.record import JUDGING, Stopwatch
from outrider.train.saving import saving

CURVE: Final = "curve.svg"
SUMMARY: Final = "summary.json"


@dataclass(frozen=True, eq=False)
class Findings:
    """The course of a finished training."""

    method: str
    ended: str
    """Why it ended."""
    steps: int
    precision: str
    judged: Sequence[Evaluation]
    best_index: int
    losses: Sequence[tuple[int, float]]
    """(tokens, loss) of every step."""
    stopwatch: Stopwatch
    measured: Mapping[str, float] = field(default_factory=dict)
    """Figures of the recipe's calibration."""
    target_name: str = ""
    """The target's name, for the plot's title."""

    @property
    def best(self) -> Evaluation:
        """The best evaluation, whose weights were kept."""
        return self.judged[self.best_index]

    @property
    def tokens(self) -> int:
        """Answer tokens trained on, with repeats."""
        return self.losses[-1][0] if self.losses else 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, without evaluations."""
        return self.tokens / self.stopwatch.total(without=JUDGING)

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """(tokens, held-out τ) of every evaluation."""
        return [(evaluation.tokens, evaluation.length) for evaluation in self.judged]

    @cached_property
    def outlook(self) -> Outlook:
        """The expected τ with more tokens."""
        return outlook(self.judged, most=1.0 + len(self.best.accepted))

    def lines(self) -> Iterator[str]:
        """The lines to print."""
        shares = " · ".join(f"{name} {share:.0%}" for name, share in self.stopwatch.shares().items())
        yield f"time: {shares}; {self.tokens_per_s:,.0f} tokens/s without judging"
        yield f"curve: {self.outlook}"
        yield f"best: {str(self.best).lstrip()}"
        yield from (f"{name}: {value:.4f}" for name, value in self.measured.items())

    def summary(self) -> dict[str, Any]:
        """The results as a JSON object."""
        ends, law = self.best.rate_intervals, self.outlook.law
        rates = {
            "rates": self.best.rates,
            "rate_intervals": None if ends is None else [[end.low, end.high] for end in ends],
        }
        return {
            "method": self.method,
            "ended": self.ended,
            "steps": self.steps,
            "tokens": self.tokens,
            "precision": self.precision,
            "tokens_per_s": self.tokens_per_s,
            "shares": self.stopwatch.shares(),
            "measured": dict(self.measured),
            "held_out_texts": self.best.texts,
            "best": self.best.summary() | rates,
            "judged": [evaluation.summary() for evaluation in self.judged],
            "fit": None if law is None else dataclasses.asdict(law),
            "outlook": str(self.outlook),
        }

    def write(self, folder: Path, more: Mapping[str, Any] | None = None) -> None:
        """Write the plot and the summary to an existing folder; ``more`` has further fields of the summary."""
        title = f"{self.method} for {self.target_name}" if self.target_name else self.method
        drawn = picture(self.losses, self.curve, self.outlook.law, title)
        summary = json.dumps(self.summary() | dict(more or {}), indent=1, ensure_ascii=False)
        for name, text in ((CURVE, drawn), (SUMMARY, summary)):
            with saving(folder / name) as file:
                file.write(text.encode())
