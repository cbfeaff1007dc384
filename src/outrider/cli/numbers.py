"""Whole numbers on the command line: ``1.5`` is refused, not rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cyclopts import CoercionError, Parameter, Token

_NONE: Final = frozenset({"none", "null"})


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Read the value of a flag as a whole number.

    Args:
        kind: the flag's type.
        tokens: what was given.

    Raises:
        CoercionError: it is no whole number.
    """
    try:
        return int(tokens[-1].value)
    except ValueError:
        raise CoercionError(token=tokens[-1], target_type=int) from None


def whole_number_or_none(kind: Any, tokens: Sequence[Token]) -> int | None:
    """The same, where ``none`` stands for no limit; see :func:`whole_number` for arguments and errors."""
    return None if tokens[-1].value.lower() in _NONE else whole_number(kind, tokens)


WHOLE: Final = Parameter(converter=whole_number, metavar="N")
WHOLE_OR_NONE: Final = Parameter(converter=whole_number_or_none, metavar="N")
"""How flags of type ``int`` and ``int | None`` are read."""
