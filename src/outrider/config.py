"""Options of the KV cache, the scheduler and speculation; each drafting method has its own in its own file."""

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
    """Size and layout of the KV cache."""

    method = "cache"
    rows: int = option(
        0, "Tokens that each model's KV cache can hold; 0 fits whole contexts, but at most 65536 tokens."
    )
    contexts: int = option(2, "Whole contexts that the KV cache can hold, if rows is 0.", low=1)
    page_size: int = option(16, "Tokens per page.", low=1, high=4096)
    prefix_cache: bool | None = option(
        None,
        "Reuse the KV cache of earlier requests with the same prefix; default: on with the native backend, where it "
        "changes no bit.",
    )

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_options(self)
        if not (self.prefix_cache is None or isinstance(self.prefix_cache, bool)):
            raise ConfigError(f"cache: prefix_cache must be True, False or None, not {self.prefix_cache!r}")


@dataclass(frozen=True)
class SchedulerConfig:
    """How much work goes into one forward pass."""

    method = "scheduler"
    max_running: int = option(256, "Maximum number of running requests.", low=1)
    max_rows: int = option(2048, "Maximum rows per pass: prompt tokens, decoded tokens and drafts together.", low=1)
    prefill_chunk: int = option(512, "Maximum prompt tokens of one request per pass (chunked prefill).", low=1)
    mixed_prompt_rows: int = option(
        0,
        "Maximum prompt tokens per pass beside decoding requests, all prompts together; 1.75 per decoding request, if "
        "that is more. Raise it if prompts matter more than the time between tokens; 0 is 12 on a CPU, 256 on a GPU.",
    )
    watermark: float = option(
        0.02,
        "Share of the KV cache that must stay free behind a new prompt while others run. Raise it if requests are "
        "preempted often.",
        high=0.9,
    )
    draft_timeout: float = option(
        120.0,
        "Seconds after which a drafter that does not return is interrupted; its requests continue without drafts. "
        "0 waits for ever.",
        high=86400,
    )

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_options(self)


@dataclass(frozen=True)
class Speculation:
    """How to speculate: the drafting method, its options, and the acceptance rule.

    ``auto`` uses lookup, and then the draft model or trained head that you give, or a head beside the target.  If
    ``method`` is a config object, ``options`` change its fields.  vLLM's names work too: ``num_speculative_tokens``,
    ``prompt_lookup_max``, ``prompt_lookup_min``, and ``model`` for a head.

    Raises:
        ConfigError: a value has the wrong type.
    """

    method: str | DrafterConfig = "auto"
    """A method's name, ``auto``, or a method's config object; None is plain decoding."""
    verifier: str = "coupled"
    """Name of the acceptance rule."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method, by name."""
    adaptive: bool = False
    """Whether a controller decides in each round what is worth drafting; else every request drafts all it can."""

    def __post_init__(self) -> None:
        """Check the types."""
        object.__setattr__(self, "method", PLAIN if self.method is None else self.method)
        if not _is_method(self.method):
            raise ConfigError(f"speculation: method must be a method's name or config, not {self.method!r}")
        if not isinstance(self.verifier, str):
            raise ConfigError(f"speculation: verifier must be the name of an acceptance rule, not {self.verifier!r}")
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"speculation: adaptive must be True or False, not {self.adaptive!r}")
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"speculation: options must be a dict of options and values, not {self.options!r}")

    @classmethod
    def of(cls, given: Any) -> Speculation:
        """Read what a user passes as speculation.

        Args:
            given: a :class:`Speculation`, a method's name or config, a dict with ``method``, ``verifier`` and options,
                True for ``auto``, or None or False for plain decoding.

        Raises:
            ConfigError: it is none of these.
        """
        if isinstance(given, Speculation):
            return given
        if isinstance(given, Mapping):
            told = {name: value for name, value in given.items() if value is not None}
            chosen = {name: told.pop(name) for name in ("method", "verifier", "adaptive") if name in told}
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
        """Add draft models or a head.

        Args:
            models: folders, hub ids or files.
            argument: the user's argument, for messages.

        Raises:
            ConfigError: the method uses no draft model, or has one already.
        """
        names = _names(models)
        if self._automatic:
            known, place = any(self.options.get(name) for name in _DRAFTERS), _DRAFTERS[0]
        else:
            config = self.drafter_config()
            if (item := drafter_option(config)) is None:
                raise ConfigError(f"{config.method} uses no draft model; leave {argument} out, or use the method auto")
            if len(names) > 1 and not isinstance(item.default, tuple):
                raise ConfigError(f"{config.method} takes one draft model, not {len(names)}")
            known, place = bool(drafters_named(config)), item.name
        if known:
            raise ConfigError(f"speculation already names its draft models; leave {argument} out")
        return replace(self, options={**self.options, place: names if len(names) > 1 else names[0]})

    def drafter_config(self, beside: Callable[[], Sequence[str]] = tuple) -> DrafterConfig:
        """Make the method's config and check it.

        Args:
            beside: gives the heads beside the target; called if ``auto`` has no draft model.

        Raises:
            ConfigError: an unknown method or option, or a value out of bounds.
        """
        options = dict(self.options)
        if self._automatic:
            given = [value for name in _DRAFTERS if (value := options.pop(name, None))]
            if len(given) > 1:
                raise ConfigError(
                    f"auto takes its draft models in one of {', '.join(_DRAFTERS)}; give only one of these"
                )
            config, chosen = automatic_config(_names(given[0]) if given else beside()), AUTOMATICALLY
        else:
            config, chosen = config_class(self.method)() if isinstance(self.method, str) else self.method, ""
        return changed(config, _spelled(options, config), chosen=chosen)

    def __repr__(self) -> str:
        """The values that differ from the defaults."""
        default = Speculation()
        shown = [] if self.method == default.method else [repr(self.method)]
        shown += [] if self.verifier == default.verifier else [f"verifier={self.verifier!r}"]
        shown += [f"options={dict(self.options)!r}"] if self.options else []
        shown += [f"adaptive={self.adaptive}"] if self.adaptive else []
        return f"Speculation({', '.join(shown)})"

    @property
    def _automatic(self) -> bool:
        return isinstance(self.method, str) and self.method.lower() == AUTOMATIC


@dataclass(frozen=True)
class SpeculationDefault:
    """What requests do that leave their speculation open; an engine's may be changed between two rounds.

    Raises:
        ConfigError: a value has the wrong type or is out of bounds.
    """

    enabled: bool = True
    """Whether they draft."""
    algorithm: str | None = None
    """The loaded method that drafts for them; None is the method that the engine was made with."""
    max_draft_tokens: int | None = None
    """Maximum draft tokens per round; None leaves it to the method."""

    def __post_init__(self) -> None:
        """Check types and bounds."""
        if not isinstance(self.enabled, bool):
            raise ConfigError(f"speculation: enabled must be True or False, not {self.enabled!r}", param="enabled")
        if not (self.algorithm is None or isinstance(self.algorithm, str)):
            raise ConfigError(
                f"speculation: algorithm must be the name of a method or None, not {self.algorithm!r}",
                param="algorithm",
            )
        most = self.max_draft_tokens
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ConfigError(
                f"speculation: max_draft_tokens must be at least 1 or None, not {most!r}; enabled=False stops drafting",
                param="max_draft_tokens",
            )
        object.__setattr__(self, "algorithm", self.algorithm and self.algorithm.lower().replace("-", "_"))


PLAIN: Final = "none"
"""The method that drafts nothing."""
_DRAFTERS: Final = ("models", "model", "head")
"""Options that tell ``auto`` what to draft with."""
_SPELLINGS: Final = {
    "num_speculative_tokens": (Role.DEPTH, Role.TOKENS),
    "prompt_lookup_max": (Role.LONGEST_MATCH,),
    "prompt_lookup_min": (Role.SHORTEST_MATCH,),
    "model": (Role.HEAD, Role.MODELS),
    "head": (Role.MODEL, Role.MODEL_OR_HEAD),
}
"""What others call an option, and the roles it may have: the first that the method has an option for."""
AuditScope = Literal["all", "texts", "greedy"]
"""What an audit checks: texts and frequencies, only texts, or only greedy texts."""


def read_config(given: Any, default: Config) -> Config:
    """Read a config from an object, a dict of its fields, or None.

    Args:
        given: what the user passed.
        default: the config that None stands for.

    Raises:
        ConfigError: it is none of these, or names an unknown field.
    """
    if given is None or isinstance(given, type(default)):
        return default if given is None else given
    kind = type(default).__name__
    if not isinstance(given, Mapping):
        raise ConfigError(f"{default.method} must be a {kind} or a dict, not {given!r}")  # type: ignore[attr-defined]
    return changed(default, given)  # type: ignore[arg-type, return-value]


def _spelled(options: Mapping[str, Any], config: DrafterConfig) -> dict[str, Any]:
    """Options by the names of our fields, with models as strings or tuples."""
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
    """Model names from one name or several; paths count as names."""
    listed = [given] if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(listed, Sequence) or not all(isinstance(item, (str, os.PathLike)) for item in listed):
        raise ConfigError(f"draft models must be given as folders, hub ids or files, not {given!r}")
    return tuple(map(os.fspath, listed))


def _is_method(given: Any) -> bool:
    return isinstance(given, str) or (hasattr(given, "build") and not isinstance(given, type))
