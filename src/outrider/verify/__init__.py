"""Acceptance rules, one per file; importing this package registers all of them."""

from outrider.verify import block, coupled, multi_step, point_mass, recursive, rejection, traversal, typical
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
    repeats_plain_text,
    rule_label,
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
    "repeats_plain_text",
    "rule_label",
    "traversal",
    "typical",
]
