"""What an audit found, for a person and for a program."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.table import Table


class Proof(enum.Enum):
    """What an audit came to, with the exit code that says so; 2 is bad input, as for every subcommand."""

    LOSSLESS = "lossless", 0
    DIFFERS = "differs", 1
    """A check failed."""
    TOO_WEAK = "too weak", 3
    """Nothing failed, but something could not have: a check met nothing to compare, or a planted fault was missed."""

    def __init__(self, word: str, exit_code: int) -> None:
        self.word, self.exit_code = word, exit_code


@dataclass(frozen=True)
class Remedy:
    """What would make an audit strong enough."""

    draws: int = 0
    """About so many ``--draws``; 0 where draws are not what is missing."""
    advice: str = ""
    """Anything else, as an imperative."""


@dataclass(frozen=True)
class CheckResult:
    """One check of the user's own engine."""

    name: str
    passed: bool
    detail: str
    flips: int = 0
    """Tokens that are not plain decoding's choice, though within the tie rule."""
    remedy: Remedy | None = None
    """For a check that found nothing wrong because it met nothing that could be."""

    @property
    def weak(self) -> bool:
        """Whether nothing is wrong, and nothing proved."""
        return self.passed and self.remedy is not None

    @property
    def word(self) -> str:
        """The result in a word or two."""
        return "TOO WEAK" if self.weak else "passed" if self.passed else "FAILED"


@dataclass(frozen=True)
class FaultResult:
    """One planted fault: the audit must catch it, or its silence proves nothing."""

    name: str
    caught: bool
    by: str
    """The check that caught it; empty where none did."""
    detail: str = ""
    remedy: Remedy | None = None
    """For one that was not caught."""

    @property
    def word(self) -> str:
        """The result in a word or two."""
        return "caught" if self.caught else "TOO WEAK"


@dataclass(frozen=True)
class Report:
    """A whole audit."""

    model: str
    algorithm: str
    verifier: str
    checks: tuple[CheckResult, ...]
    faults: tuple[FaultResult, ...]
    false_alarm: float
    """Odds that chance alone makes any check fail, or makes the self-test count a fault as caught."""
    seconds: float

    @property
    def proof(self) -> Proof:
        """What the audit came to."""
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
        """Ties that fell the other way, all checks together."""
        return sum(check.flips for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The same as one JSON object."""
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
        """Checks and faults."""
        checks = Table(
            "check", "result", "what was seen", title=f"{self.model}: {self.algorithm} under {self.verifier}"
        )
        for check in self.checks:
            checks.add_row(check.name, check.word, check.detail, style=_STYLES[check.word])
        faults = Table("planted fault", "caught by", "what was seen", title="self-test: each fault must be caught")
        for fault in self.faults:
            faults.add_row(fault.name, fault.by or f"nothing: {fault.word}", fault.detail, style=_STYLES[fault.word])
        return checks, faults

    def summary(self) -> str:
        """The verdict in one sentence."""
        return (
            f"{self._verdict()}; {self.flips} ties fell the other way; odds of a false alarm {self.false_alarm:g}, "
            f"the self-test included; {self.seconds:.0f} s."
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
        parts = [f"Too weak: {_remedies(remedies)}"]
        parts.append(f"nothing wrong was found in {len(self.checks)} checks")
        parts += [f"{len(weak)} of them could see nothing ({', '.join(weak)})"] if weak else []
        parts += [f"{len(missed)} of {len(self.faults)} planted faults went unnoticed ({', '.join(missed)})"] * bool(
            missed
        )
        return "; ".join(parts)


_STYLES: Final = {"passed": "", "caught": "", "TOO WEAK": "yellow", "FAILED": "bold red"}


def _remedies(found: Iterable[Remedy | None]) -> str:
    """What to do, each thing once."""
    remedies = [remedy for remedy in found if remedy is not None]
    draws = max((remedy.draws for remedy in remedies), default=0)
    advice = [f"raise --draws to about {draws}"] if draws else []
    return " and ".join(advice + sorted({remedy.advice for remedy in remedies if remedy.advice}))
