"""Drafting methods, one per file: which there are, and the config of each."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from outrider.drafters.base import REGISTRY, DrafterConfig
from outrider.errors import ConfigError

AUTOMATIC: Final = "auto"
"""What leaves the choice of the method open."""
AUTOMATICALLY: Final = f", which {AUTOMATIC} chose here,"
"""Follows the name of a method that the user did not name, in messages."""


def methods() -> list[str]:
    """Names of every method, without importing them."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def config_class(name: str) -> type[DrafterConfig]:
    """The config class of a method, importing its file.

    Raises:
        ConfigError: listing the methods there are, and the nearest.
    """
    key = name.lower().replace("-", "_")
    if key not in REGISTRY:
        if key not in methods():
            names = [AUTOMATIC, *methods()]
            close = get_close_matches(key, names, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(f"there is no drafting method {name!r}{meant}; there are: {', '.join(names)}")
        importlib.import_module(f"{__name__}.{key}")
    return REGISTRY[key]


def automatic_config(draft_models: Sequence[str]) -> DrafterConfig:
    """The method to use when the user leaves the choice open: of those that offer themselves, the highest rank.

    Args:
        draft_models: draft models the user named.
    """
    found = [config_class(name) for name in methods()]
    offers = [(config.automatic_rank, config.automatic(draft_models)) for config in found]
    return max(((rank, offer) for rank, offer in offers if offer is not None), key=lambda pair: pair[0])[1]


def make_config(name: str, options: Mapping[str, Any]) -> DrafterConfig:
    """A method's config with some options set.

    Raises:
        ConfigError: naming an option the method does not have, or one out of bounds.
    """
    return changed(config_class(name)(), options)


def changed(config: DrafterConfig, options: Mapping[str, Any], *, chosen: str = "") -> DrafterConfig:
    """A config with some options changed.

    Args:
        config: a method's config.
        options: by name.
        chosen: how the method was chosen, where the user did not, for messages.

    Raises:
        ConfigError: naming an option the method does not have, or one out of bounds.
    """
    known = [item.name for item in dataclasses.fields(config)]  # type: ignore[arg-type]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        has = ", ".join(known) or "none"
        raise ConfigError(f"{config.method}{chosen} has no option {unknown[0]!r}; it has: {has}")
    return dataclasses.replace(config, **options) if options else config  # type: ignore[type-var]
