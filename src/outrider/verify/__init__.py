"""Acceptance rules, one per file; importing this package registers them all."""

from outrider.verify import block, coupled, multi_step, point_mass, recursive, rejection, traversal
from outrider.verify.base import (
    Dice,
    Draws,
    KeyedDice,
    Rows,
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
    "Rows",
    "Verdict",
    "Verifier",
    "block",
    "check_exact",
    "coupled",
    "make_verifier",
    "multi_step",
    "point_mass",
    "recursive",
    "registered",
    "rejection",
    "traversal",
]
