"""Options of the engine itself; each drafting method owns its own in its own file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar

from outrider.drafters import AUTOMATIC, AUTOMATICALLY, automatic_config, changed, config_class
from outrider.drafters.base import DrafterConfig
from outrider.errors import ConfigError
from outrider.options import Role, check_options, drafter_option, drafters_named, option, roles_of

Config = TypeVar("Config")


@dataclass(frozen=True)
class CacheConfig:
    """How many keys and values are kept."""

    method = "cache"
    rows: int = option(0, "Token rows each model's cache can hold; 0 makes room for two whole contexts, 65536 at most.")
    page_size: int = option(16, "Rows per page.", low=1, high=4096)
    prefix_cache: bool | None = option(
        None,
        "Take over the rows of earlier requests whose text begins alike; by default where that changes no bit: on the "
        "native backend.",
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)
        if not (self.prefix_cache is None or isinstance(self.prefix_cache, bool)):
            raise ConfigError(f"cache: prefix_cache must be True, False or None, not {self.prefix_cache!r}")


@dataclass(frozen=True)
class SchedulerConfig:
    """How much work goes into one pass."""

    method = "scheduler"
    max_running: int = option(256, "Most requests decoded side by side.", low=1)
    max_rows: int = option(2048, "Most rows in one pass, prompts and drafts together.", low=1)
    prefill_chunk: int = option(512, "Most rows of one prompt in one pass.", low=1)

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)


@dataclass(frozen=True)
class Speculation:
    """How to speculate: the method, the acceptance rule, and the method's own options.

    Where ``method`` is a method's config, ``options`` change its fields; ``auto`` is lookup, with the draft model or
    the trained head behind it where one is given, or a head lies beside the target.  Options may be spelled as vLLM
    does: ``num_speculative_tokens``, ``prompt_lookup_max``, ``prompt_lookup_min``, and ``model`` for a head too.

    Raises:
        ConfigError: a value is of another kind.
    """

    method: str | DrafterConfig = "auto"
    """A method's name, ``auto``, or a method's config; None is plain decoding."""
    verifier: str = "coupled"
    """The acceptance rule."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's options, by name."""

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        object.__setattr__(self, "method", PLAIN if self.method is None else self.method)
        if not _is_method(self.method):
            raise ConfigError(f"speculation: method must be a method's name or config, not {self.method!r}")
        if not isinstance(self.verifier, str):
            raise ConfigError(f"speculation: verifier must be the name of an acceptance rule, not {self.verifier!r}")
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"speculation: options must map options to values, not be {self.options!r}")

    @classmethod
    def of(cls, given: Any) -> Speculation:
        """What a user passes as speculation.

        Args:
            given: a method's name or config, a dict with ``method``, ``verifier`` and the method's options, True for
                ``auto``, None or False for plain decoding, or a :class:`Speculation`.

        Raises:
            ConfigError: it is something else.
        """
        if isinstance(given, Speculation):
            return given
        if isinstance(given, Mapping):
            told = {name: value for name, value in given.items() if value is not None}
            chosen = {name: told.pop(name) for name in ("method", "verifier") if name in told}
            nested = told.pop("options", {})
            return cls(**chosen, options={**told, **cls(options=nested).options})
        if given is None or isinstance(given, bool):
            return cls(AUTOMATIC if given else PLAIN)
        if not _is_method(given):
            raise ConfigError(
                f"speculation must be a method's name, a dict, a Speculation or None for plain decoding, not {given!r}"
            )
        return cls(given)

    def drafting_with(
        self, models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], argument: str
    ) -> Speculation:
        """The same with draft models or a head that the method is to use.

        Args:
            models: folders, hub ids or files.
            argument: what the user gave them as, for messages.

        Raises:
            ConfigError: the method drafts without, or names its own already.
        """
        names = _names(models)
        if self._automatic:
            known, place = any(self.options.get(name) for name in _DRAFTERS), _DRAFTERS[0]
        else:
            config = self.drafter_config()
            if (item := drafter_option(config)) is None:
                raise ConfigError(f"{config.method} takes no draft model; leave {argument} out, or the method to auto")
            if len(names) > 1 and not isinstance(item.default, tuple):
                raise ConfigError(f"{config.method} takes one draft model, not {len(names)}")
            known, place = bool(drafters_named(config)), item.name
        if known:
            raise ConfigError(f"speculation names its draft models already; leave {argument} out")
        return replace(self, options={**self.options, place: names if len(names) > 1 else names[0]})

    def drafter_config(self, beside: Callable[[], Sequence[str]] = tuple) -> DrafterConfig:
        """The method's checked config.

        Args:
            beside: asked for the heads beside the target where the choice is open and no draft model is named.

        Raises:
            ConfigError: an unknown method or option, or a value out of bounds.
        """
        options = dict(self.options)
        if self._automatic:
            given = [value for name in _DRAFTERS if (value := options.pop(name, None))]
            if len(given) > 1:
                raise ConfigError(f"auto takes its draft models as one of {', '.join(_DRAFTERS)}, not as several")
            config, chosen = automatic_config(_names(given[0]) if given else beside()), AUTOMATICALLY
        else:
            config, chosen = config_class(self.method)() if isinstance(self.method, str) else self.method, ""
        return changed(config, _spelled(options, config), chosen=chosen)

    def __repr__(self) -> str:
        """What differs from the default."""
        default = Speculation()
        shown = [] if self.method == default.method else [repr(self.method)]
        shown += [] if self.verifier == default.verifier else [f"verifier={self.verifier!r}"]
        shown += [f"options={dict(self.options)!r}"] if self.options else []
        return f"Speculation({', '.join(shown)})"

    @property
    def _automatic(self) -> bool:
        return isinstance(self.method, str) and self.method.lower() == AUTOMATIC


PLAIN: Final = "none"
"""The method that drafts nothing."""
_DRAFTERS: Final = ("models", "model", "head")
"""Options by which ``auto`` is told what to draft with."""
_SPELLINGS: Final = {
    "num_speculative_tokens": (Role.DEPTH, Role.TOKENS),
    "prompt_lookup_max": (Role.LONGEST_MATCH,),
    "prompt_lookup_min": (Role.SHORTEST_MATCH,),
    "model": (Role.HEAD, Role.MODELS),
    "head": (Role.MODEL, Role.MODEL_OR_HEAD),
}
"""What others call an option, and the roles it may have: the first that the method has an option for."""
AuditScope = Literal["all", "texts", "greedy"]
"""What an audit checks: texts and frequencies, texts alone, or greedy texts alone."""


def read_config(given: Any, default: Config) -> Config:
    """What a user passes where a config is due.

    Args:
        given: such a config, a dict of its fields, or None.
        default: what None stands for.

    Raises:
        ConfigError: it is something else, or names a field there is not.
    """
    if given is None or isinstance(given, type(default)):
        return default if given is None else given
    kind = type(default).__name__
    if not isinstance(given, Mapping):
        raise ConfigError(f"{default.method} must be a {kind} or a dict, not {given!r}")  # type: ignore[attr-defined]
    return changed(default, given)  # type: ignore[arg-type, return-value]


def _spelled(options: Mapping[str, Any], config: DrafterConfig) -> dict[str, Any]:
    """Options by the names of a config's fields, models and lists of them as the fields hold them."""
    known = {item.name: item for item in fields(config)}  # type: ignore[arg-type]
    roles, named = roles_of(config), dict[str, Any]()
    for name, value in options.items():
        others = _SPELLINGS.get(name, ()) if name not in known else ()
        field_name = next((roles[role].name for role in others if role in roles), name)
        if field_name in named or (field_name != name and field_name in options):
            raise ConfigError(f"{config.method}: {field_name} is given twice, once as {name}; give it once")
        given = os.fspath(value) if isinstance(value, os.PathLike) else value
        several = field_name in known and isinstance(known[field_name].default, tuple)
        named[field_name] = _names(given) if several else given
    return named


def _names(given: Any) -> tuple[str, ...]:
    """Names of models from one or several; a path is a name."""
    listed = [given] if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(listed, Sequence) or not all(isinstance(item, (str, os.PathLike)) for item in listed):
        raise ConfigError(f"draft models must be given as folders, hub ids or files, not {given!r}")
    return tuple(map(os.fspath, listed))


def _is_method(given: Any) -> bool:
    return isinstance(given, str) or (hasattr(given, "build") and not isinstance(given, type))
