"""Acceptance rules, one per file; importing this package registers all of them."""

import importlib
import pkgutil

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
    "check_exact",
    "make_verifier",
    "registered",
    "repeats_plain_text",
    "rule_label",
]


def discover() -> None:
    """Import every file of this package, so its rules register."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


discover()
