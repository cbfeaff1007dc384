"""Drafting methods, one per file: their names and their configs."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from outrider.drafters.base import REGISTRY, DrafterConfig
from outrider.errors import ConfigError
from outrider.options import drafter_option

AUTOMATIC: Final = "auto"
"""Name that lets Outrider choose the method."""
AUTOMATICALLY: Final = f", which {AUTOMATIC} chose here,"
"""In messages, after the name of a method that the user did not choose."""


def methods() -> list[str]:
    """List the names of all methods, without importing them."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in names if name != "base" and not name.startswith("_"))


def config_class(name: str) -> type[DrafterConfig]:
    """Import a method's file and return its config class.

    Raises:
        ConfigError: there is no such method; the message lists all and the closest name.
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
    """Choose the method for ``auto``: the one with the highest rank that offers a config for these draft models."""
    offers = [config_class(name).automatic(draft_models) for name in methods()]
    return max((offer for offer in offers if offer is not None), key=lambda offer: offer.automatic_rank)


def draftless() -> list[DrafterConfig]:
    """Configs of the methods that need no draft model or head, so that loading them costs nothing."""
    kinds = [config_class(name) for name in methods()]
    return [kind() for kind in kinds if drafter_option(kind) is None]


def make_config(name: str, options: Mapping[str, Any]) -> DrafterConfig:
    """Make a method's config from options; see :func:`changed` for errors."""
    return changed(config_class(name)(), options)


def changed(config: DrafterConfig, options: Mapping[str, Any], *, chosen: str = "") -> DrafterConfig:
    """Return a config with some options changed.

    ``chosen`` says in messages how the method was chosen if the user did not choose it.

    Raises:
        ConfigError: the method has no such option, or a value is out of bounds.
    """
    known = [item.name for item in dataclasses.fields(config)]  # type: ignore[arg-type]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        has = ", ".join(known) or "none"
        raise ConfigError(f"{config.method}{chosen} has no option {unknown[0]!r}; it has: {has}")
    return dataclasses.replace(config, **options) if options else config  # type: ignore[type-var]
