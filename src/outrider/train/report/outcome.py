"""The summary of a training, as text and JSON: quality, speed, how to use the drafter, and how to improve it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from outrider.train.data.prompts import VALIDATION_SHARE
from outrider.train.features.vocabulary import DraftVocabulary
from outrider.train.recipes.base import Acceptance
from outrider.train.report.findings import Findings
from outrider.train.training_data import Texts

_OFTEN: Final = 2.0
"""From this many passes on, more texts help more than more passes."""
_COVERED: Final = 0.98
"""Below this coverage, a larger draft vocabulary is suggested."""
_FEW_TEXTS: Final = 30
"""Below this many held-out texts, intervals are wide."""


@dataclass(frozen=True, eq=False)
class TrainingOutcome:
    """A trained drafter and its measurements."""

    model: str
    """The target, as the user named it."""
    method: str
    output: Path
    findings: Findings
    texts: Texts
    """The texts it was trained on."""
    vocabulary: DraftVocabulary | None = None
    """The reduced draft vocabulary made for it."""
    by_member: Mapping[str, Acceptance] = field(default_factory=dict)
    """Held-out acceptance of each of several networks, by name."""
    payoff: Sequence[Mapping[str, Any]] = ()
    """Measured speed: plain decoding first, the drafter last."""
    starts: bool = True
    """Whether a training can start from this drafter."""
    online: bool = False
    """Whether texts were answered during training, so that the number of passes is unknown."""

    def lines(self) -> Iterator[str]:
        """The lines to print at the end."""
        where, tokens = shlex.quote(str(self.output)), self.findings.tokens
        passes = f" ({self._passes:.1f} passes over {len(self.texts.train):,} texts)" if self._passes else ""
        yield f"Trained: {self.method} for {self.model} on {tokens:,} answer tokens{passes}, in {where}"
        yield f"Held out: {self._quality()}"
        yield f"Speed here: {self._speed()}"
        yield f'Use it: outrider generate "…" --model {shlex.quote(self.model)} --draft-model {where}'
        yield from (f"To raise it: {one}" for one in self._advice())

    def to_json(self) -> dict[str, Any]:
        """The fields of ``summary.json`` besides those of :class:`Findings`."""
        return {
            "model": self.model,
            "output": str(self.output),
            "texts": len(self.texts.train),
            "answer_tokens": self.texts.answer_tokens,
            "vocabulary_coverage": None if self.vocabulary is None else self.vocabulary.coverage,
            "apart": {
                name: {"length": one.accepted_length, "rates": one.rates} for name, one in self.by_member.items()
            },
            "bought": [dict(row) for row in self.payoff],
        }

    @property
    def _passes(self) -> float:
        """Passes over the texts; 0 if unknown."""
        return 0.0 if self.online else self.findings.tokens / max(1, self.texts.answer_tokens)

    def _quality(self) -> str:
        best = self.findings.best
        whole, ends = best.length_interval, best.rate_intervals
        if whole is None or ends is None:
            rates = " ".join(f"{rate:.2f}" for rate in best.rates)
            return f"τ {best.length:.2f}, α by position {rates}; {best.texts} texts are too few for an interval"
        rates = " · ".join(f"{end.value:.2f} ({end})" for end in ends)
        return f"τ {best.length:.2f} ({whole}), α by position {rates}; 95 % intervals over {best.texts} texts"

    def _speed(self) -> str:
        plain, *beside, own = self.payoff
        others = "".join(f", {row['method']} {row['speedup']:.2f}×" for row in beside)
        slower = "; drafting costs more than it saves at this acceptance" if own["speedup"] < plain["speedup"] else ""
        return f"{own['speedup']:.2f}× plain decoding at τ {own['accepted_length']:.2f}{others}{slower}"

    def _advice(self) -> Iterator[str]:
        outlook, vocabulary = self.findings.outlook, self.vocabulary
        on = (
            f" (continue with --start-from {shlex.quote(str(self.output))} and another --output)" if self.starts else ""
        )
        if outlook.law is not None and outlook.twice is not None:
            yield f"more --tokens; the curve has τ {outlook.twice.value:.2f} ({outlook.twice}) at twice as many{on}"
        else:
            yield f"perhaps more --tokens, but the gain is unknown: {outlook}{on}"
        if self._passes > _OFTEN:
            yield f"more prompts (--synthesise, --data), because each text was read {self._passes:.1f} times"
        if vocabulary is not None and vocabulary.coverage < _COVERED:
            size = len(vocabulary.ids)
            yield f"a larger --vocabulary: {size:,} tokens cover {vocabulary.coverage:.1%} of the answers"
        if len(self.texts.held_out) < _FEW_TEXTS:
            share = round(100 * VALIDATION_SHARE)
            yield f"more prompts, which narrow the intervals too: {share} in 100 are held out"
