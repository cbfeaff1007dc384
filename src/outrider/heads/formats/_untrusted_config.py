"""What a configuration of another project says, read with suspicion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from outrider.errors import ModelError

_MOST: Final = 2**31 - 1


@dataclass(frozen=True, eq=False)
class UntrustedConfig:
    """A JSON object whose values are checked when they are asked for; null counts as not said.

    Args:
        name: of the head, for messages.
        values: the object.
    """

    name: str
    values: Mapping[str, Any]

    def says(self, key: str) -> bool:
        """Whether there is a value."""
        return self.values.get(key) is not None

    def number(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number.

        Args:
            key: its name.
            default: where nothing is said; None refuses that.
            low: the least it may be.

        Raises:
            ModelError: it is missing, not a whole number or out of bounds.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MOST:
            raise self._wrong(key, f"a whole number of at least {low}")
        return value

    def fraction(self, key: str, default: float) -> float:
        """A positive number.

        Raises:
            ModelError: it is none.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self._wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes or no.

        Raises:
            ModelError: it is neither.
        """
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A text.

        Raises:
            ModelError: it is none.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        """Whole numbers, of which there is at least one.

        Raises:
            ModelError: it is something else.
        """
        value = self._value(key, None)
        if (
            not isinstance(value, list)
            or not value
            or not all(type(each) is int and abs(each) < _MOST for each in value)
        ):
            raise self._wrong(key, "a list of whole numbers")
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Texts; none where nothing is said.

        Raises:
            ModelError: it is something else.
        """
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def part(self, key: str) -> UntrustedConfig:
        """An object inside this one; empty where nothing is said.

        Raises:
            ModelError: it is something else.
        """
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return UntrustedConfig(self.name, value)

    def over(self, other: UntrustedConfig) -> UntrustedConfig:
        """This object, with another one for what it does not say."""
        said = {key: value for key, value in self.values.items() if value is not None}
        return UntrustedConfig(self.name, {**other.values, **said})

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelError(f"{self.name}: its configuration does not say {key!r}")
            return default
        return value

    def _wrong(self, key: str, wanted: str) -> ModelError:
        shown = repr(self.values.get(key))
        return ModelError(f"{self.name}: {key!r} must be {wanted}, not {shown[:60]}")
