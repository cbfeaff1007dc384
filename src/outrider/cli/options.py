"""Flags that subcommands share; those of drafting methods are made from the methods' own config dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, cast, get_origin, get_type_hints

import torch
from cyclopts import Parameter

from outrider.config import AUTOMATIC, CacheConfig, Speculation
from outrider.drafters.base import (
    MODELS_FLAG,
    DrafterConfig,
    automatic_config,
    changed,
    config_class,
    make_config,
    methods,
)
from outrider.errors import ConfigError
from outrider.kernels.native import set_threads
from outrider.sampling.params import SamplingParams
from outrider.target.loading import heads_beside
from outrider.verify import Verifier, check_exact, make_verifier, registered, rule_label

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.target.backends import LoadOptions

T = TypeVar("T")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model, and how it is run."""

    model: str
    """Folder, hub id, .gguf file, or the name of a model in the models folder."""
    dtype: str = "auto"
    """Precision on the hf backend: auto, float32, bfloat16 or float16."""
    device: str = "auto"
    """auto, cpu or cuda."""
    backend: str = "auto"
    """What runs the model: native, hf, or auto for the best that serves it."""
    quantization: str = "none"
    """What the native backend makes of the weights: none, w8 or w4."""
    speculative_draft_quantization: str = "auto"
    """The same for draft models; auto is w4, which changes the acceptance rate alone."""
    context_length: int | None = None
    """Most tokens of prompt and output together; by default the model's own limit."""
    threads: int | None = None
    """CPU threads; by default the physical cores this process may use."""

    def use_threads(self) -> None:
        """Set the thread count where one was asked for.

        Raises:
            ConfigError: it is not positive.
        """
        if self.threads is None:
            return
        if self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.threads}")

        torch.set_num_threads(self.threads)
        set_threads(self.threads)

    def load(self, plan: Plan, cache: CacheFlags) -> LLM:
        """Load the model with a way to speculate, and room for keys and values."""
        from outrider.llm import LLM  # takes seconds, which --help and bad flags need not wait for

        self.use_threads()
        return LLM(
            self.model,
            speculation=plan.speculation,
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            context_length=self.context_length,
            quantization=self.quantization,
            draft_quantization=self.speculative_draft_quantization,
            cache=cache.config,
        )

    @property
    def options(self) -> LoadOptions:
        """The same as options of :func:`outrider.target.backends.load_model`."""
        from outrider.target.backends import LoadOptions  # likewise

        return LoadOptions(
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            context_length=self.context_length,
            quantization=self.quantization,
            draft_quantization=self.speculative_draft_quantization,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CacheFlags:
    """What is kept between requests."""

    prefix_cache: bool | None = None
    """Take over the rows of earlier requests whose text begins alike; by default on the native backend."""

    @property
    def config(self) -> CacheConfig:
        """The same for the library."""
        return CacheConfig(prefix_cache=self.prefix_cache)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How tokens are chosen."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the most probable one."""
    seed: int | None = None
    """Makes sampled text reproducible; by default one is drawn and reported."""
    max_tokens: int = 256
    """Most tokens of the output."""
    stop: Annotated[list[str], Parameter(negative="")] = field(default_factory=list)
    """String that ends the output; may be given more than once."""

    def params(self) -> SamplingParams:
        """The same as sampling parameters.

        Raises:
            ConfigError: a value out of range.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop),
        )


RULES: Final = ", ".join(rule_label(name, lossless=rule.lossless) for name, rule in registered().items())
"""Every acceptance rule, for the help."""


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

    @property
    def several(self) -> bool:
        """Whether its flag may be given more than once."""
        return get_origin(self.kind) is tuple

    @property
    def shown_default(self) -> str:
        """The default, for a person to read."""
        return "none" if self.default in ((), "", None) else str(self.default)

    @property
    def bounds(self) -> str:
        """The bounds, for a person to read; empty where the option is not a number."""
        if self.low is None or isinstance(self.default, bool) or not isinstance(self.default, (int, float)):
            return ""
        return f"from {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    @property
    def limits(self) -> str:
        """Default and bounds together."""
        return f"{self.shown_default}, {self.bounds}" if self.bounds else self.shown_default

    def value(self, given: Any) -> Any:
        """The option's value, from its flag's.

        Raises:
            ConfigError: several values for an option that takes one.
        """
        if self.several:
            return tuple(given) if isinstance(given, list) else (given,)
        if isinstance(given, list):
            if len(given) != 1:
                raise ConfigError(f"{self.method} takes one --{self.flag}, but {len(given)} were given")
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
        )
        for item in dataclasses.fields(config)  # type: ignore[arg-type]
        if "flag" in item.metadata
    ]


@cache
def all_options() -> dict[str, list[Option]]:
    """Every flag of every method, with the options it sets."""
    table: dict[str, list[Option]] = {}
    for name in methods():
        for each in options_of(config_class(name)):
            table.setdefault(each.flag, []).append(each)
    return table


def with_method_options(base: type[T]) -> type[T]:
    """Add a flag for every option of every method to a dataclass of flags; None is the method's own default."""
    hints = get_type_hints(base, include_extras=True)  # the new __init__ cannot resolve this module's names
    defaults = {item.name: item.default for item in dataclasses.fields(base)}  # type: ignore[arg-type]
    fields = {name: (name, hints[name], dataclasses.field(default=default)) for name, default in defaults.items()}
    for flag, options in all_options().items():
        kind = next((list[str] for option in options if option.several), options[0].kind)
        parameter = Parameter(name=f"--{flag}", help=_help(options), negative="")
        name = flag.replace("-", "_")
        fields[name] = (name, Annotated[kind | None, parameter], dataclasses.field(default=None))
    made = dataclasses.make_dataclass(base.__name__, fields.values(), bases=(base,), frozen=True, kw_only=True)
    made.__doc__, made.__module__ = base.__doc__, base.__module__
    return cast(type[T], made)


def _help(options: Sequence[Option]) -> str:
    """The help texts of the options behind one flag, each followed by the methods that have it."""
    texts: dict[str, list[str]] = {}
    for option in options:
        texts.setdefault(option.help, []).append(f"{option.method}: {option.limits}")
    return " ".join(f"{text} ({'; '.join(where)})" for text, where in texts.items())


@dataclass(frozen=True)
class Plan:
    """A checked way to speculate."""

    config: DrafterConfig
    verifier: Verifier

    @property
    def speculation(self) -> Speculation:
        """The same for the library."""
        return Speculation(self.config, self.verifier.name)

    @property
    def names(self) -> dict[str, str]:
        """What it is called."""
        return {"algorithm": self.config.method, "verifier": self.verifier.name}

    @property
    def facts(self) -> dict[str, Any]:
        """The names, and whether the output keeps the target's law."""
        return self.names | {"lossless": self.verifier.lossless}


@Parameter(name="*")
@with_method_options
@dataclass(frozen=True, kw_only=True)
class MethodFlags:
    """The acceptance rule, and the options of every method."""

    verifier: Annotated[str, Parameter(help=f"Acceptance rule: {RULES}.")] = "coupled"

    def given(self) -> dict[str, Any]:
        """The method options that were given, by flag."""
        values = {flag: getattr(self, flag.replace("-", "_")) for flag in all_options()}
        return {flag: value for flag, value in values.items() if value is not None}

    @property
    def draft_models(self) -> list[str]:
        """The draft models that were named."""
        return list(self.given().get(MODELS_FLAG, []))

    def check_used(self, configs: Sequence[DrafterConfig]) -> None:
        """Refuse an option that none of the methods has: it was meant for something else.

        Raises:
            ConfigError: naming the flag and the methods.
        """
        known = {option.flag for config in configs for option in options_of(type(config))}
        for flag in self.given().keys() - known:
            raise ConfigError(f"--{flag} is an option of none of: {', '.join(config.method for config in configs)}")

    def plan(self, algorithm: str, model: str | None = None, *, ignore_foreign: bool = False) -> Plan:
        """The way to speculate that these flags and an algorithm's name describe.

        Args:
            algorithm: a method's name or ``auto``; case, dashes and underscores do not matter.
            model: the target, beside which ``auto`` looks for a head where no draft model is named; None looks nowhere.
            ignore_foreign: leave out options the method does not have, as a run of several methods must.

        Raises:
            ConfigError: an unknown name, an option the method does not have, or a value out of bounds.
        """
        given = self.given()
        config = chosen_config(algorithm, self.draft_models, lambda: heads_beside(model) if model else ())
        known = {option.flag: option for option in options_of(type(config))}
        foreign = [flag for flag in given if flag not in known]
        if foreign and not ignore_foreign:
            has = ", ".join(f"--{flag}" for flag in known) or "none"
            raise ConfigError(f"--{foreign[0]} is not an option of {config.method}; it has: {has}")
        values = {known[flag].field: known[flag].value(value) for flag, value in given.items() if flag in known}
        config, rule = changed(config, values), make_verifier(self.verifier)
        check_exact(rule, config.method, config.needs)
        return Plan(config, rule)


@Parameter(name="*")
@with_method_options
@dataclass(frozen=True, kw_only=True)
class SpeculationFlags(MethodFlags):
    """How to speculate."""

    speculative_algorithm: Annotated[
        str, Parameter(help=f"Drafting method: {', '.join(name.upper() for name in (AUTOMATIC, *methods()))}.")
    ] = AUTOMATIC

    def chosen(self, model: str | None = None) -> Plan:
        """The way to speculate that the flags describe; see :meth:`MethodFlags.plan` for arguments and errors."""
        return self.plan(self.speculative_algorithm, model)


CACHE: Final = CacheFlags()
SAMPLING: Final = SamplingFlags()
METHOD: Final = MethodFlags()
SPECULATION: Final = SpeculationFlags()
"""Defaults of the subcommands' signatures."""


def chosen_config(
    algorithm: str, draft_models: Sequence[str], beside: Callable[[], Sequence[str]] = tuple
) -> DrafterConfig:
    """The config a name stands for, its options at their defaults.

    Args:
        algorithm: a method's name or ``auto``; case, dashes and underscores do not matter.
        draft_models: what ``auto`` chooses by.
        beside: asked for heads beside the target where ``auto`` has nothing to choose by.

    Raises:
        ConfigError: an unknown name.
    """
    if algorithm.lower() == AUTOMATIC:
        return automatic_config(draft_models or beside())
    return make_config(algorithm, {})
