"""The results of an audit, as tables and as JSON."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.table import Table


class Proof(enum.Enum):
    """The verdict of an audit and its exit code; 2 is bad input, as for every subcommand."""

    LOSSLESS = "lossless", 0
    DIFFERS = "differs", 1
    """A check failed."""
    TOO_WEAK = "too weak", 3
    """Nothing failed, but a check had nothing to compare or missed a planted fault."""

    def __init__(self, word: str, exit_code: int) -> None:
        self.word, self.exit_code = word, exit_code


@dataclass(frozen=True)
class Remedy:
    """What would make an audit strong enough."""

    draws: int = 0
    """The ``--draws`` needed, about; 0 if draws are not the problem."""
    advice: str = ""
    """Anything else to do, as an imperative."""


@dataclass(frozen=True)
class CheckResult:
    """One check of the user's own engine."""

    name: str
    passed: bool
    detail: str
    flips: int = 0
    """Tokens that differ from plain decoding within the tie rule."""
    remedy: Remedy | None = None
    """Set if the check passed only because it had nothing to compare."""

    @property
    def weak(self) -> bool:
        """Whether the check passed without proving anything."""
        return self.passed and self.remedy is not None

    @property
    def word(self) -> str:
        """The result in a word or two."""
        return "TOO WEAK" if self.weak else "passed" if self.passed else "FAILED"


@dataclass(frozen=True)
class FaultResult:
    """One planted fault; an audit that misses one proves nothing."""

    name: str
    caught: bool
    by: str
    """The check that caught it; empty if none did."""
    detail: str = ""
    remedy: Remedy | None = None
    """How to catch it, if it was missed."""

    @property
    def word(self) -> str:
        """The result in a word or two."""
        return "caught" if self.caught else "TOO WEAK"


@dataclass(frozen=True)
class Stage:
    """One check or one planted fault, yet to run."""

    name: str
    run: Callable[[], CheckResult | FaultResult]


@dataclass(frozen=True)
class Report:
    """A whole audit."""

    model: str
    algorithm: str
    verifier: str
    checks: tuple[CheckResult, ...]
    faults: tuple[FaultResult, ...]
    false_alarm: float
    """Probability that chance alone fails any check, or makes the self-test count a fault as caught."""
    seconds: float

    @property
    def proof(self) -> Proof:
        """The verdict."""
        if not all(check.passed for check in self.checks):
            return Proof.DIFFERS
        blind = any(check.weak for check in self.checks) or not all(fault.caught for fault in self.faults)
        return Proof.TOO_WEAK if blind else Proof.LOSSLESS

    @property
    def passed(self) -> bool:
        """Whether every check passed and every planted fault was caught."""
        return self.proof is Proof.LOSSLESS

    @property
    def flips(self) -> int:
        """Ties that fell the other way, over all checks."""
        return sum(check.flips for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "passed": self.passed,
            "proof": self.proof.word,
            "checks": [asdict(check) for check in self.checks],
            "faults": [asdict(fault) for fault in self.faults],
            "flips": self.flips,
            "model": self.model,
            "verifier": self.verifier,
            "algorithm": self.algorithm,
            "false_alarm": self.false_alarm,
            "seconds": round(self.seconds, 1),
        }

    def tables(self) -> tuple[Table, Table]:
        """The tables of checks and of faults."""
        title = f"{self.model}: {self.algorithm} under {self.verifier}"
        checks = Table("check", "result", "details", title=title)
        for check in self.checks:
            checks.add_row(check.name, check.word, check.detail, style=_STYLES[check.word])
        faults = Table("planted fault", "caught by", "details", title="self-test: each fault must be caught")
        for fault in self.faults:
            faults.add_row(fault.name, fault.by or f"nothing: {fault.word}", fault.detail, style=_STYLES[fault.word])
        return checks, faults

    def summary(self) -> str:
        """The verdict in one sentence."""
        return (
            f"{self._verdict()}; {self.flips} ties fell the other way; probability of a false alarm "
            f"{self.false_alarm:g}, self-test included; {self.seconds:.0f} s."
        )

    def _verdict(self) -> str:
        if self.proof is Proof.LOSSLESS:
            return f"Lossless: {len(self.checks)} checks passed and all {len(self.faults)} planted faults were caught"
        if self.proof is Proof.DIFFERS:
            failed = sum(not check.passed for check in self.checks)
            return f"NOT proved lossless: {failed} of {len(self.checks)} checks failed"
        weak = [check.name for check in self.checks if check.weak]
        missed = [fault.name for fault in self.faults if not fault.caught]
        remedies = [*(check.remedy for check in self.checks), *(fault.remedy for fault in self.faults)]
        parts = [f"Too weak: {_remedies(remedies)}", f"none of {len(self.checks)} checks failed"]
        if weak:
            parts.append(f"{len(weak)} of them had nothing to compare ({', '.join(weak)})")
        if missed:
            parts.append(f"{len(missed)} of {len(self.faults)} planted faults were missed ({', '.join(missed)})")
        return "; ".join(parts)


_STYLES: Final = {"passed": "", "caught": "", "TOO WEAK": "yellow", "FAILED": "bold red"}


def _remedies(found: Iterable[Remedy | None]) -> str:
    """All remedies in one phrase, each once."""
    remedies = [remedy for remedy in found if remedy is not None]
    draws = max((remedy.draws for remedy in remedies), default=0)
    advice = [f"raise --draws to about {draws}"] if draws else []
    return " and ".join(advice + sorted({remedy.advice for remedy in remedies if remedy.advice}))
