"""Flags that subcommands share: the model and how it is run, what is kept, and how to speculate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import torch
from cyclopts import Parameter

from outrider.cli import help as groups
from outrider.cli import output
from outrider.cli.method_options import Option, all_options, options_of, spellings, with_method_options
from outrider.config import CacheConfig, Speculation
from outrider.drafters.base import (
    AUTOMATIC,
    AUTOMATICALLY,
    DrafterConfig,
    automatic_config,
    changed,
    make_config,
)
from outrider.errors import ConfigError
from outrider.kernels.native import set_threads, use_kernels
from outrider.options import drafters_named
from outrider.verify import Verifier, check_exact, make_verifier, registered, rule_label

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.models.backends import LoadOptions

__all__ = [
    "CACHE",
    "METHOD",
    "RULES",
    "SPECULATION",
    "CacheFlags",
    "CheckedSpeculation",
    "MethodFlags",
    "ModelFlags",
    "Option",
    "SpeculationFlags",
    "all_options",
    "chosen_config",
    "options_of",
]


@Parameter(name="*", group=groups.MODEL)
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model, and how it is run."""

    model: Annotated[str, Parameter(alias="-m", metavar="NAME")]
    """Folder, hub id, .gguf file or name."""
    backend: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """native, hf, or auto: the best of them."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu or cuda."""
    dtype: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """On hf: float32, bfloat16, float16."""
    quantization: Annotated[str, Parameter(metavar="NAME")] = "none"
    """Of native's weights: none, w8 or w4."""
    speculative_draft_quantization: Annotated[
        str, Parameter(name=spellings("speculative-draft-quantization"), metavar="NAME", group=groups.SPECULATION)
    ] = "auto"
    """Of draft models: none, w8, w4; auto is w4."""
    context_length: Annotated[int | None, Parameter(metavar="N")] = None
    """Most tokens in all; else the model's limit."""
    threads: Annotated[int | None, Parameter(metavar="N")] = None
    """CPU threads; else one per physical core."""
    kernels: Annotated[str | None, Parameter(metavar="NAME")] = None
    """CPU instruction set: see outrider info."""

    def use_threads(self) -> None:
        """Set the thread count and the CPU kernels where they were asked for.

        Raises:
            ConfigError: there may not be so many threads, or this CPU has no such kernels.
        """
        if self.kernels is not None:
            use_kernels(self.kernels)
        if self.threads is not None:
            set_threads(self.threads)
            torch.set_num_threads(self.threads)

    def load(self, plan: CheckedSpeculation, cache: CacheFlags) -> LLM:
        """Load the model with a way to speculate, and room for keys and values."""
        from outrider.llm import LLM  # takes seconds, which --help and bad flags need not wait for

        self.use_threads()
        with output.waiting(f"loading {self.model}"):
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
        """The same as options of :func:`outrider.models.backends.load_model`."""
        from outrider.models.backends import LoadOptions  # likewise

        return LoadOptions(
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            context_length=self.context_length,
            quantization=self.quantization,
            draft_quantization=self.speculative_draft_quantization,
        )


@Parameter(name="*", group=groups.MODEL)
@dataclass(frozen=True, kw_only=True)
class CacheFlags:
    """What is kept between requests."""

    prefix_cache: bool | None = None
    """Reuse equal beginnings; by default on native."""

    @property
    def config(self) -> CacheConfig:
        """The same for the library."""
        return CacheConfig(prefix_cache=self.prefix_cache)


RULES: Final = ", ".join(rule_label(name, lossless=rule.lossless) for name, rule in registered().items())
"""Every acceptance rule, for the help."""


@dataclass(frozen=True)
class CheckedSpeculation:
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


@Parameter(name="*", group=groups.SPECULATION)
@with_method_options
@dataclass(frozen=True, kw_only=True)
class MethodFlags:
    """The acceptance rule, and the options of every method."""

    verifier: Annotated[str, Parameter(metavar="NAME", help="Acceptance rule.")] = "coupled"

    def given(self) -> dict[str, Any]:
        """The method options that were given, by flag."""
        values = {flag: getattr(self, flag.replace("-", "_")) for flag in all_options()}
        return {flag: value for flag, value in values.items() if value is not None}

    @property
    def draft_models(self) -> list[str]:
        """The draft models that were named."""
        return [name for flag, names in self.given().items() if all_options()[flag][0].names_drafter for name in names]

    def check_used(self, configs: Sequence[DrafterConfig]) -> None:
        """Refuse an option that none of the methods has: it was meant for something else.

        Raises:
            ConfigError: naming the flag and the methods.
        """
        known = {option.flag for config in configs for option in options_of(type(config))}
        for flag in self.given().keys() - known:
            names = ", ".join(config.method for config in configs)
            raise ConfigError(f"{spellings(flag)[0]} is an option of none of: {names}")

    def plan(self, algorithm: str, model: str | None = None, *, ignore_foreign: bool = False) -> CheckedSpeculation:
        """The way to speculate that these flags and an algorithm's name describe.

        Args:
            algorithm: a method's name or ``auto``; case, dashes and underscores do not matter.
            model: the target, beside which ``auto`` looks for a head where no draft model is named; None looks nowhere,
                and lets a method that needs a draft model wait for one.
            ignore_foreign: leave out options the method does not have, as a run of several methods must.

        Raises:
            ConfigError: an unknown name, an option the method does not have, a value out of bounds, or no draft model
                where one is needed.
        """
        given = self.given()
        config = chosen_config(algorithm, self.draft_models, lambda: _beside(model) if model else ())
        known = {option.flag: option for option in options_of(type(config))}
        foreign = [flag for flag in given if flag not in known]
        if foreign and not ignore_foreign:
            has = ", ".join(option.shown for option in known.values()) or "none"
            named = config.method + (AUTOMATICALLY if algorithm.lower() == AUTOMATIC else "")
            raise ConfigError(f"{spellings(foreign[0])[0]} is not an option of {named.rstrip(',')}; it has: {has}")
        values = {known[flag].field: known[flag].value(value) for flag, value in given.items() if flag in known}
        config, rule = changed(config, values), make_verifier(self.verifier)
        place = next((option for option in known.values() if option.names_drafter), None)
        if model is not None and place is not None and not drafters_named(config):
            raise ConfigError(f"{config.method} needs a model or head; name it with {place.shown}")
        check_exact(rule, config.method, config.needs)
        return CheckedSpeculation(config, rule)


@Parameter(name="*", group=groups.SPECULATION)
@with_method_options
@dataclass(frozen=True, kw_only=True)
class SpeculationFlags(MethodFlags):
    """How to speculate."""

    speculative_algorithm: Annotated[
        str,
        Parameter(
            name=spellings("speculative-algorithm"),
            metavar="NAME",
            help="Drafting method.",
        ),
    ] = AUTOMATIC

    def chosen(self, model: str | None = None) -> CheckedSpeculation:
        """The way to speculate that the flags describe; see :meth:`MethodFlags.plan` for arguments and errors."""
        return self.plan(self.speculative_algorithm, model)


def _beside(model: str) -> Sequence[str]:
    from outrider.models.loading import heads_beside  # takes seconds, which --help and bad flags need not wait for

    return heads_beside(model)


CACHE: Final = CacheFlags()
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
