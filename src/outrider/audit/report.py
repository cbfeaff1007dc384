"""What an audit found, for a person and for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class CheckResult:
    """One check of the user's own engine."""

    name: str
    passed: bool
    detail: str
    flips: int = 0
    """Tokens that are not plain decoding's choice, though within the tie rule."""


@dataclass(frozen=True)
class FaultResult:
    """One planted fault: the audit must catch it, or its silence proves nothing."""

    name: str
    caught: bool
    by: str
    """The check that caught it; empty where none did."""
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """A whole audit."""

    model: str
    algorithm: str
    verifier: str
    checks: tuple[CheckResult, ...]
    faults: tuple[FaultResult, ...]
    false_alarm: float
    """Odds that an audit of a lossless engine fails by chance."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed and every planted fault was caught."""
        return all(check.passed for check in self.checks) and all(fault.caught for fault in self.faults)

    @property
    def flips(self) -> int:
        """Ties that fell the other way, all checks together."""
        return sum(check.flips for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The same as one JSON object."""
        return {
            "passed": self.passed,
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
            checks.add_row(check.name, "passed" if check.passed else "FAILED", check.detail, style=_style(check.passed))
        faults = Table("planted fault", "caught by", "what was seen", title="self-test: each fault must be caught")
        for fault in self.faults:
            faults.add_row(fault.name, fault.by or "NOTHING", fault.detail, style=_style(fault.caught))
        return checks, faults

    def summary(self) -> str:
        """The verdict in one sentence."""
        failed = sum(not check.passed for check in self.checks)
        missed = sum(not fault.caught for fault in self.faults)
        if self.passed:
            verdict = (
                f"Lossless: {len(self.checks)} checks passed and all {len(self.faults)} planted faults were caught"
            )
        else:
            verdict = (
                f"NOT proved lossless: {failed} of {len(self.checks)} checks failed and "
                f"{missed} of {len(self.faults)} planted faults went unnoticed"
            )
        return (
            f"{verdict}; {self.flips} ties fell the other way; odds of a false alarm {self.false_alarm:g}; "
            f"{self.seconds:.0f} s."
        )


def _style(good: bool) -> str:
    return "" if good else "bold red"
