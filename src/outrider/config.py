"""Options of the engine itself; each drafting method owns its own in its own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from outrider.drafters.base import DrafterConfig, automatic_config, changed, check_options, make_config, option
from outrider.errors import ConfigError


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
    the trained head behind it where one is given, or a head lies beside the target.
    """

    method: str | DrafterConfig = "auto"
    verifier: str = "coupled"
    options: Mapping[str, Any] = field(default_factory=dict)

    def drafter_config(self, beside: Callable[[], Sequence[str]] = tuple) -> DrafterConfig:
        """The method's checked config.

        Args:
            beside: asked for the heads beside the target where the choice is open and no draft model is named.

        Raises:
            ConfigError: an unknown method or option, or a value out of bounds.
        """
        if not isinstance(self.method, str):
            return changed(self.method, self.options)
        if self.method.lower() != AUTOMATIC:
            return make_config(self.method, self.options)
        options = dict(self.options)
        models = options.pop("models", None) or [model for model in [options.pop("model", "")] if model]
        return changed(automatic_config(models or beside()), options)


AUTOMATIC = "auto"
AuditScope = Literal["all", "texts", "greedy"]
"""What an audit checks: texts and frequencies, texts alone, or greedy texts alone."""
