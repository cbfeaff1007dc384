"""Options as dataclass fields with default, bounds, help and role.

A frozen dataclass of fields made with :func:`option` holds the options of a drafting method, a recipe, or a part of the
engine.  Flags, bounds, help and reference are made from it.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from outrider.errors import ConfigError
from outrider.values import plain

Config = TypeVar("Config")


class Role(enum.Enum):
    """Meaning of an option for code outside its method's file, which finds options by role and never by name."""

    MODEL = "the model to draft with", "speculative-draft-model-path"
    MODELS = "the models to draft with", "speculative-draft-model-path"
    HEAD = "the trained head to draft with", "speculative-draft-model-path"
    MODEL_OR_HEAD = "the model or trained head to draft with", "speculative-draft-model-path"
    DEPTH = "drafting passes per round", "speculative-num-steps"
    WIDTH = "branches per node", "speculative-eagle-topk"
    TOKENS = "most drafted tokens per round", "speculative-num-draft-tokens"
    SHORTEST_MATCH = ("shortest match that counts",)
    LONGEST_MATCH = ("longest match looked for",)
    MIN_SURVIVAL = "least estimated chance of acceptance of what a network drafts", "speculative-min-survival"

    def __init__(self, meaning: str, flag: str | None = None) -> None:
        self.meaning, self.flag = meaning, flag

    @property
    def names_drafter(self) -> bool:
        """Whether the option names what drafts: models or a head."""
        return self in (Role.MODEL, Role.MODELS, Role.HEAD, Role.MODEL_OR_HEAD)


def option(
    default: Any,
    help: str,
    *,
    low: float = 0,
    high: float | None = None,
    flag: str | None = None,
    role: Role | None = None,
) -> Any:
    """Make a field of a config.

    Args:
        default: the default value.
        help: one line.
        low: minimum, for numbers.
        high: maximum, for numbers; None is unbounded.
        flag: the command-line flag; by default the role's, or made from the field's name.
        role: the option's meaning for other code; None if no other code reads it.
    """
    shared = None if role is None else role.flag
    metadata = {"help": help, "low": low, "high": high, "flag": flag or shared, "role": role}
    return dataclasses.field(default=default, metadata=metadata)


def check_options(config: Any) -> None:
    """Refuse numbers out of bounds; scalars of numpy or torch become plain numbers.

    Raises:
        ConfigError: naming method, field and bounds.
    """
    for item in dataclasses.fields(config):
        low, high = item.metadata.get("low"), item.metadata.get("high")
        value = plain(getattr(config, item.name))
        if low is None or not isinstance(item.default, (int, float)):
            continue
        object.__setattr__(config, item.name, value)
        wanted = (int, float) if isinstance(item.default, float) else int
        if isinstance(value, bool) or not isinstance(value, wanted):
            kind = "a number" if isinstance(item.default, float) else "a whole number"
            raise ConfigError(f"{config.method}: {item.name} must be {kind}, not {value!r}", param=item.name)
        if not low <= value <= (math.inf if high is None else high):
            bounds = f"at least {low:g}" + ("" if high is None else f" and at most {high:g}")
            raise ConfigError(f"{config.method}: {item.name} must be {bounds}, not {value!r}", param=item.name)


def roles_of(config: Any) -> dict[Role, dataclasses.Field[Any]]:
    """Options with a role, of a config or its class."""
    return {role: item for item in dataclasses.fields(config) if (role := item.metadata.get("role")) is not None}


def with_roles(config: Config, values: Mapping[Role, Any]) -> Config:
    """Change the options of some roles; roles that the config does not have are ignored.

    Raises:
        ConfigError: a value is out of bounds.
    """
    known = roles_of(config)
    changes = {known[role].name: value for role, value in values.items() if role in known}
    return dataclasses.replace(config, **changes) if changes else config  # type: ignore[type-var]


def drafter_option(config: Any) -> dataclasses.Field[Any] | None:
    """The option that names what drafts, of a config or its class; None if there is none."""
    return next((item for role, item in roles_of(config).items() if role.names_drafter), None)


def drafters_named(config: Any) -> tuple[str, ...]:
    """Names of the draft models and heads in a config."""
    item = drafter_option(config)
    value = () if item is None else getattr(config, item.name)
    return tuple(name for name in (value if isinstance(value, tuple) else (value,)) if name)
