"""Flags of drafting methods, generated from their config classes, and the spellings of flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast, get_origin, get_type_hints

from cyclopts import Parameter

from outrider.cli.help import SPECULATION
from outrider.cli.numbers import whole_number
from outrider.drafters import config_class, methods
from outrider.drafters.base import DrafterConfig
from outrider.errors import ConfigError
from outrider.options import Role

T = TypeVar("T")

_PREFIX: Final = "speculative-"
SHORT: Final = {
    "speculative-draft-model-path": "draft-model",
    "speculative-num-draft-tokens": "draft-tokens",
}
"""Flags whose short spelling is not the long one without its prefix."""
SHARED: Final = {
    "speculative-draft-model-path": ("NAME", "Draft model or trained head."),
    "speculative-num-draft-tokens": ("N", "Maximum draft tokens per round."),
}
"""Flags of most methods, with metavar and help; ``outrider info --methods`` lists all flags."""


def spellings(flag: str) -> tuple[str, ...]:
    """All spellings of a flag; the first one is shown."""
    short = SHORT.get(flag, flag.removeprefix(_PREFIX))
    return tuple(f"--{name}" for name in dict.fromkeys((short, flag)))


class Option(NamedTuple):
    """One option of one method."""

    method: str
    field: str
    kind: Any
    flag: str
    help: str
    default: Any
    low: float | None
    high: float | None
    role: Role | None

    @property
    def shown(self) -> str:
        """The flag in its shown spelling."""
        return spellings(self.flag)[0]

    @property
    def names_drafter(self) -> bool:
        """Whether it names what drafts: a draft model or a trained head."""
        return self.role is not None and self.role.names_drafter

    @property
    def several(self) -> bool:
        """Whether its flag may be repeated."""
        return get_origin(self.kind) is tuple

    @property
    def shown_default(self) -> str:
        """The default as text."""
        return "none" if self.default in ((), "", None) else str(self.default)

    @property
    def bounds(self) -> str:
        """The bounds as text; empty if the option is not a number."""
        if self.low is None or isinstance(self.default, bool) or not isinstance(self.default, (int, float)):
            return ""
        return f"from {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    @property
    def limits(self) -> str:
        """Default and bounds as text."""
        return f"{self.shown_default}, {self.bounds}" if self.bounds else self.shown_default

    def value(self, given: Any) -> Any:
        """Convert the flag's value to the option's value.

        Raises:
            ConfigError: several values for an option that takes one.
        """
        if self.several:
            return tuple(given) if isinstance(given, list) else (given,)
        if isinstance(given, list):
            if len(given) != 1:
                raise ConfigError(f"{self.method} takes one {self.shown}, but {len(given)} were given; give one")
            return given[0]
        return given


def options_of(config: type[DrafterConfig]) -> list[Option]:
    """The options of one method, in the order of its dataclass."""
    kinds = get_type_hints(config)
    return [
        Option(
            method=config.method,
            field=item.name,
            kind=kinds[item.name],
            flag=item.metadata["flag"] or f"speculative-{item.name.replace('_', '-')}",
            help=item.metadata["help"],
            default=item.default,
            low=item.metadata["low"],
            high=item.metadata["high"],
            role=item.metadata["role"],
        )
        for item in dataclasses.fields(config)  # type: ignore[arg-type]
        if "flag" in item.metadata
    ]


@cache
def all_options() -> dict[str, list[Option]]:
    """All flags of all methods, with the options that they set."""
    table: dict[str, list[Option]] = {}
    for name in methods():
        for each in options_of(config_class(name)):
            table.setdefault(each.flag, []).append(each)
    return table


def with_method_options(base: type[T]) -> type[T]:
    """Add a flag for every option of every method to a dataclass; None keeps the method's default."""
    hints = get_type_hints(base, include_extras=True)  # the new __init__ cannot resolve this module's names
    defaults = {item.name: item.default for item in dataclasses.fields(base)}  # type: ignore[arg-type]
    fields = {name: (name, hints[name], dataclasses.field(default=default)) for name, default in defaults.items()}
    for flag, options in all_options().items():
        kind = next((list[str] for option in options if option.several), options[0].kind)
        metavar, text = SHARED.get(flag, (None, _help(options)))
        parameter = Parameter(
            name=spellings(flag),
            help=text,
            metavar=metavar,
            converter=whole_number if kind is int else None,
            negative="",
            show=flag in SHARED,
            group=SPECULATION,
        )
        name = flag.replace("-", "_")
        fields[name] = (name, Annotated[kind | None, parameter], dataclasses.field(default=None))
    made = dataclasses.make_dataclass(base.__name__, fields.values(), bases=(base,), frozen=True, kw_only=True)
    made.__doc__, made.__module__ = base.__doc__, base.__module__
    return cast(type[T], made)


def _help(options: Sequence[Option]) -> str:
    """The help texts of a flag's options, each followed by the methods that have it."""
    texts: dict[str, list[str]] = {}
    for option in options:
        texts.setdefault(option.help, []).append(f"{option.method}: {option.limits}")
    return " ".join(f"{text} ({'; '.join(where)})" for text, where in texts.items())
