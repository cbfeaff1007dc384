"""Checked reading of another project's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from outrider.errors import ModelError

_MOST: Final = 2**31 - 1


@dataclass(frozen=True, eq=False)
class UntrustedConfig:
    """A head's JSON object whose values are checked when they are read; null counts as missing.

    Every method raises :class:`outrider.errors.ModelError` for a value of another type, or one that is missing and has
    no default.
    """

    name: str
    values: Mapping[str, Any]

    def says(self, key: str) -> bool:
        """Whether there is a value."""
        return self.values.get(key) is not None

    def number(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """Read a whole number of at least ``low``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MOST:
            raise self._wrong(key, f"a whole number of at least {low}")
        return value

    def fraction(self, key: str, default: float) -> float:
        """Read a positive number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self._wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Read a boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """Read a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        """Read a list of at least one whole number."""
        value = self._value(key, None)
        if isinstance(value, list) and value and all(type(each) is int and abs(each) < _MOST for each in value):
            return tuple(value)
        raise self._wrong(key, "a list of whole numbers")

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of strings; empty if it is missing."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def part(self, key: str) -> UntrustedConfig:
        """Read an object inside this one; empty if it is missing."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return UntrustedConfig(self.name, value)

    def over(self, other: UntrustedConfig) -> UntrustedConfig:
        """Fill this object's missing values from another one."""
        said = {key: value for key, value in self.values.items() if value is not None}
        return UntrustedConfig(self.name, {**other.values, **said})

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelError(f"{self.name}: its configuration has no {key!r}")
            return default
        return value

    def _wrong(self, key: str, wanted: str) -> ModelError:
        shown = repr(self.values.get(key))
        return ModelError(f"{self.name}: {key!r} must be {wanted}, not {shown[:60]}")
