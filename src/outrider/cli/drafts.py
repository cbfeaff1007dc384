"""``--draft METHOD[:PATH[:OPTION=VALUE…]]``: a drafter in one word, so that many of one method fit in one run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from outrider.cli.options import Option, chosen_config, options_of
from outrider.drafters.base import DrafterConfig, changed
from outrider.errors import ConfigError
from outrider.options import drafters_named
from outrider.verify import check_exact, make_verifier

if TYPE_CHECKING:
    from outrider.bench.runner import Arm

_TRUTH: Final = {"true": True, "false": False}
_PREFIX: Final = "speculative_"
_SETTING: Final = re.compile(r"[\w-]+\s*=")
"""How OPTION=VALUE begins; a path may hold the same sign further on."""


class Draft(NamedTuple):
    """A drafter that was asked for."""

    name: str
    """What it is called in tables: its text with paths cut to their last part."""
    text: str
    config: DrafterConfig


def draft_arms(texts: Sequence[str], verifier: str) -> list[Arm]:
    """An arm for each drafter, plain decoding first.

    Raises:
        ConfigError: none is named, one is named twice or cannot be read, or the rule is not exact for it.
    """
    from outrider.bench.runner import Arm
    from outrider.bench.session import plain_arm

    if not texts:
        raise ConfigError("name at least one drafter: --draft METHOD[:PATH[:OPTION=VALUE…]], such as --draft ngram")
    rule, drafts = make_verifier(verifier), [read_draft(text) for text in texts]
    for draft in drafts:
        if sum(draft.config == other.config for other in drafts) > 1:
            raise ConfigError(f"--draft names {draft.text} twice")
        check_exact(rule, draft.config.method, draft.config.needs)
    short = [draft.name for draft in drafts]
    names = [draft.text if short.count(draft.name) > 1 else draft.name for draft in drafts]
    return [plain_arm(verifier), *(Arm(name, draft.config, rule) for name, draft in zip(names, drafts, strict=True))]


def read_draft(text: str) -> Draft:
    """The drafter that a word describes.

    Raises:
        ConfigError: an unknown method or option, a value that is none, a method that does not draft, or a model that is
            missing or has no place.
    """
    method, *rest = (part.strip() for part in text.split(":"))
    paths = [part for part in rest if not _SETTING.match(part)]
    if len(paths) > 1:
        raise ConfigError(f"--draft {text}: {paths[1]!r} is not OPTION=VALUE")
    path = paths[0] if paths else ""
    config = chosen_config(method, path.split(",") if path else [])
    values = _values(text, config, path, [part for part in rest if _SETTING.match(part)])
    config = changed(config, values)
    if config.most_nodes < 2:
        raise ConfigError(f"--draft {text} drafts nothing; plain decoding always takes part")
    if _places(config) and not drafters_named(config):
        raise ConfigError(f"--draft {text}: {config.method} needs a model or head: --draft {config.method}:PATH")
    shown = [Path(part).name.removesuffix(".gguf") if part == path and path else part for part in (method, *rest)]
    return Draft(":".join(shown), text, config)


def _places(config: DrafterConfig) -> list[Option]:
    """The option that takes draft models, if there is one."""
    return [option for option in options_of(type(config)) if option.names_drafter]


def _values(text: str, config: DrafterConfig, path: str, settings: Sequence[str]) -> dict[str, Any]:
    """The options of a word by their fields."""
    values: dict[str, Any] = {}
    if path:
        if not (places := _places(config)):
            raise ConfigError(f"--draft {text}: {config.method} reads no model, so {path!r} has no place")
        values[places[0].field] = places[0].value(path.split(",") if places[0].several else path)
    known = {name: option for option in options_of(type(config)) for name in _spellings(option)}
    for setting in settings:
        key, _, given = setting.partition("=")
        option = known.get(key.strip().replace("-", "_"))
        if option is None:
            has = ", ".join(each.field for each in options_of(type(config))) or "none"
            raise ConfigError(f"--draft {text}: {config.method} has no option {key.strip()!r}; it has: {has}")
        values[option.field] = _value(text, option, given.strip())
    return values


def _spellings(option: Option) -> set[str]:
    """An option's field, and its flag with and without its prefix."""
    flag = option.flag.replace("-", "_")
    return {option.field, flag, flag.removeprefix(_PREFIX)}


def _value(text: str, option: Option, given: str) -> Any:
    if option.several:
        return option.value(given.split(","))
    if option.kind is bool:
        if given.lower() not in _TRUTH:
            raise ConfigError(f"--draft {text}: {option.field} is true or false, not {given!r}")
        return _TRUTH[given.lower()]
    try:
        return option.kind(given)
    except ValueError:
        raise ConfigError(f"--draft {text}: {option.field} is a number, not {given!r}") from None
