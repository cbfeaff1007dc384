"""Converts scalars and arrays of numpy and torch to plain Python values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Convert a scalar of numpy or torch to a Python number; other values stay as they are.

    Args:
        value: an array of one or more dimensions is no scalar, whatever it holds.
    """
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def is_token_id(value: Any) -> bool:
    """Whether a plain value may be a token id of some model."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def listed(values: Any) -> list[Any]:
    """The plain items of an array or another iterable.

    Raises:
        TypeError: it cannot be, or is bytes or a mapping, whose items are something else than they seem.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)):
        raise TypeError(f"{type(values).__name__} is no sequence of values")
    items = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(items, list):
        raise TypeError(f"{items!r} is a single value")
    return [plain(item) for item in items]
