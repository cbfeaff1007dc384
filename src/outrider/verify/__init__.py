"""Acceptance rules, one per file; importing this package registers them all."""

from outrider.verify import coupled, point_mass
from outrider.verify.base import (
    Dice,
    Draws,
    KeyedDice,
    TargetRows,
    Verdict,
    Verifier,
    check_exact,
    make_verifier,
    registered,
)

__all__ = [
    "Dice",
    "Draws",
    "KeyedDice",
    "TargetRows",
    "Verdict",
    "Verifier",
    "check_exact",
    "coupled",
    "make_verifier",
    "point_mass",
    "registered",
]
