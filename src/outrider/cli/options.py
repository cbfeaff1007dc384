"""Flags that subcommands share: the model, the KV cache, and how to speculate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import torch
from cyclopts import Parameter

from outrider.cli import help as groups
from outrider.cli import output
from outrider.cli.method_options import Option, all_options, options_of, spellings, with_method_options
from outrider.cli.numbers import WHOLE, WHOLE_OR_NONE
from outrider.config import CacheConfig, SchedulerConfig, Speculation
from outrider.drafters import AUTOMATIC, AUTOMATICALLY, automatic_config, changed, make_config
from outrider.drafters.base import DrafterConfig
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
    """Which model, and how to run it."""

    model: Annotated[str, Parameter(alias="-m", metavar="NAME")]
    """Folder, .gguf file, hub id or name."""
    backend: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """native (our CPU kernels) or hf (transformers)."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """cpu, cuda or auto."""
    context_length: Annotated[int | None, WHOLE_OR_NONE] = None
    """Context size; default: the model's own."""
    threads: Annotated[int | None, WHOLE_OR_NONE] = None
    """CPU threads; default: one per physical core."""
    dtype: Annotated[str, Parameter(metavar="NAME", group=groups.MORE_MODEL)] = "auto"
    """float32, bfloat16 or float16; hf only."""
    quantization: Annotated[str, Parameter(metavar="NAME", group=groups.MORE_MODEL)] = "none"
    """Quantize weights: none, w8, w4; native only."""
    kernels: Annotated[str | None, Parameter(metavar="NAME", group=groups.MORE_MODEL)] = None
    """CPU instruction set; outrider info lists them."""
    speculative_draft_quantization: Annotated[
        str, Parameter(name=spellings("speculative-draft-quantization"), metavar="NAME", group=groups.MORE_SPECULATION)
    ] = "auto"
    """Quantize draft models: none, w8, w4 (auto)."""

    def use_threads(self) -> None:
        """Set the thread count and the CPU kernels, if given.

        Raises:
            ConfigError: too many threads, or kernels that this CPU does not have.
        """
        if self.kernels is not None:
            use_kernels(self.kernels)
        if self.threads is not None:
            set_threads(self.threads)
            torch.set_num_threads(self.threads)

    def load(self, plan: CheckedSpeculation, cache: CacheConfig, scheduler: SchedulerConfig | None = None) -> LLM:
        """Load the model, its drafter and its KV cache."""
        from outrider.llm import LLM  # takes seconds; --help and bad flags should answer at once

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
                cache=cache,
                scheduler=scheduler,
            )

    @property
    def options(self) -> LoadOptions:
        """These flags as options of :func:`outrider.models.backends.load_model`."""
        from outrider.models.backends import LoadOptions  # takes seconds, too

        return LoadOptions(
            backend=self.backend,
            dtype=self.dtype,
            device=self.device,
            context_length=self.context_length,
            quantization=self.quantization,
            draft_quantization=self.speculative_draft_quantization,
        )


@Parameter(name="*", group=groups.MORE_MODEL)
@dataclass(frozen=True, kw_only=True)
class CacheFlags:
    """Options of the KV cache."""

    prefix_cache: bool | None = None
    """Reuse shared prefixes; default: on with native."""
    cache_rows: Annotated[int, WHOLE] = 0
    """Tokens that the KV cache holds; 0: automatic."""

    @property
    def config(self) -> CacheConfig:
        """These flags as the library's config."""
        return CacheConfig(rows=self.cache_rows, prefix_cache=self.prefix_cache)


RULES: Final = ", ".join(rule_label(name, lossless=rule.lossless) for name, rule in registered().items())
"""All acceptance rules, for the help."""


@dataclass(frozen=True)
class CheckedSpeculation:
    """A checked choice of method, options and acceptance rule."""

    config: DrafterConfig
    verifier: Verifier

    @property
    def speculation(self) -> Speculation:
        """The plan as the library's config."""
        return Speculation(self.config, self.verifier.name)

    @property
    def names(self) -> dict[str, str]:
        """The names of method and rule, for output."""
        return {"algorithm": self.config.method, "verifier": self.verifier.name}

    @property
    def facts(self) -> dict[str, Any]:
        """The names, and whether the rule is lossless."""
        return self.names | {"lossless": self.verifier.lossless}


@Parameter(name="*", group=groups.SPECULATION)
@with_method_options
@dataclass(frozen=True, kw_only=True)
class MethodFlags:
    """The acceptance rule, and the options of every method."""

    verifier: Annotated[
        str,
        Parameter(metavar="NAME", group=groups.MORE_SPECULATION, help="Acceptance rule; outrider info --methods."),
    ] = "coupled"

    def given(self) -> dict[str, Any]:
        """The method options on the command line, by flag."""
        values = {flag: getattr(self, flag.replace("-", "_")) for flag in all_options()}
        return {flag: value for flag, value in values.items() if value is not None}

    @property
    def draft_models(self) -> list[str]:
        """The draft models on the command line."""
        return [name for flag, names in self.given().items() if all_options()[flag][0].names_drafter for name in names]

    def check_used(self, configs: Sequence[DrafterConfig]) -> None:
        """Refuse an option that none of the methods has.

        Raises:
            ConfigError: there is one; the message names the flag and the methods.
        """
        known = {option.flag for config in configs for option in options_of(type(config))}
        for flag in self.given().keys() - known:
            names = ", ".join(config.method for config in configs)
            raise ConfigError(f"{spellings(flag)[0]} is not an option of any method here ({names}); leave it out")

    def plan(self, algorithm: str, model: str | None = None, *, ignore_foreign: bool = False) -> CheckedSpeculation:
        """Choose and check a method, its options and the acceptance rule.

        Args:
            algorithm: a method's name or ``auto``; case, dashes and underscores do not matter.
            model: the target; without a named draft model, ``auto`` looks for a head beside it.  None skips that
                search and does not require a draft model yet.
            ignore_foreign: skip options that the method does not have; for runs of several methods.

        Raises:
            ConfigError: an unknown name, an option that the method does not have, a value out of bounds, or a missing
                draft model.
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
            raise ConfigError(f"{config.method} needs a draft model or head; name it with {place.shown}")
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
            help="Drafting method; none is plain decoding.",
        ),
    ] = AUTOMATIC

    def chosen(self, model: str | None = None) -> CheckedSpeculation:
        """Choose and check the method that the flags name; arguments and errors are those of :meth:`plan`."""
        return self.plan(self.speculative_algorithm, model)


def _beside(model: str) -> Sequence[str]:
    from outrider.models.loading import heads_beside  # takes seconds, too

    return heads_beside(model)


CACHE: Final = CacheFlags()
METHOD: Final = MethodFlags()
SPECULATION: Final = SpeculationFlags()
"""Defaults of the subcommands' signatures."""


def chosen_config(
    algorithm: str, draft_models: Sequence[str], beside: Callable[[], Sequence[str]] = tuple
) -> DrafterConfig:
    """The config of a method, with default options.

    Args:
        algorithm: a method's name or ``auto``; case, dashes and underscores do not matter.
        draft_models: draft models or heads; ``auto`` chooses the method that fits them.
        beside: gives the heads beside the target; called if ``auto`` has no draft models.

    Raises:
        ConfigError: an unknown name.
    """
    if algorithm.lower() == AUTOMATIC:
        return automatic_config(draft_models or beside())
    return make_config(algorithm, {})
