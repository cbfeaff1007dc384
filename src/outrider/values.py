"""Plain numbers out of what users have at hand: scalars of numpy and torch, and ids in other kinds of sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A scalar of numpy or torch as the Python number it stands for; anything else as it is.

    Args:
        value: an array of one or more dimensions is no scalar, whatever it holds.
    """
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def is_token_id(value: Any) -> bool:
    """Whether a plain value may be a token id of some model."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def listed(values: Any) -> list[Any]:
    """The plain items of an array, or of anything that can be gone through.

    Raises:
        TypeError: it cannot be, or is bytes or a mapping, whose items are something else than they seem.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)):
        raise TypeError(f"{type(values).__name__} is no sequence of values")
    items = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(items, list):
        raise TypeError(f"{items!r} is a single value")
    return [plain(item) for item in items]
