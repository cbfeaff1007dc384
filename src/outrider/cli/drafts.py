"""``--draft METHOD[:PATH[:OPTION=VALUE…]]``: a drafter in one word, so that a run can compare many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from outrider.cli.options import Option, chosen_config, options_of
from outrider.drafters import changed
from outrider.drafters.base import DrafterConfig
from outrider.errors import ConfigError
from outrider.options import drafters_named
from outrider.verify import check_exact, make_verifier

if TYPE_CHECKING:
    from outrider.bench.runner import Arm

_TRUTH: Final = {"true": True, "false": False}
_PREFIX: Final = "speculative_"
_SETTING: Final = re.compile(r"[\w-]+\s*=")
"""The start of OPTION=VALUE; a path may contain ``=`` later."""


class Draft(NamedTuple):
    """A drafter from the command line."""

    name: str
    """Its name in tables: its text, with paths shortened to their last part."""
    text: str
    config: DrafterConfig


def draft_arms(texts: Sequence[str], verifier: str) -> list[Arm]:
    """One arm per drafter, with plain decoding first.

    Raises:
        ConfigError: no drafter, a duplicate, a malformed one, or a rule that is not exact for it.
    """
    from outrider.bench.runner import Arm
    from outrider.bench.session import plain_arm

    if not texts:
        raise ConfigError("name at least one drafter: --draft METHOD[:PATH[:OPTION=VALUE…]], such as --draft ngram")
    rule, drafts = make_verifier(verifier), [read_draft(text) for text in texts]
    for draft in drafts:
        if sum(draft.config == other.config for other in drafts) > 1:
            raise ConfigError(f"--draft {draft.text} is given twice; give it once")
        check_exact(rule, draft.config.method, draft.config.needs)
    short = [draft.name for draft in drafts]
    names = [draft.text if short.count(draft.name) > 1 else draft.name for draft in drafts]
    return [plain_arm(verifier), *(Arm(name, draft.config, rule) for name, draft in zip(names, drafts, strict=True))]


def read_draft(text: str) -> Draft:
    """Read one drafter.

    Raises:
        ConfigError: an unknown method or option, a bad value, a method that does not draft, or a model that is missing
            or not used.
    """
    method, *rest = (part.strip() for part in text.split(":"))
    paths = [part for part in rest if not _SETTING.match(part)]
    if len(paths) > 1:
        raise ConfigError(f"--draft {text}: write OPTION=VALUE in place of {paths[1]!r}")
    path = paths[0] if paths else ""
    config = chosen_config(method, path.split(",") if path else [])
    values = _values(text, config, path, [part for part in rest if _SETTING.match(part)])
    config = changed(config, values)
    if config.most_nodes < 2:
        raise ConfigError(f"--draft {text} drafts nothing; leave it out, since plain decoding always runs")
    if _places(config) and not drafters_named(config):
        raise ConfigError(f"--draft {text}: {config.method} needs a draft model or head: --draft {config.method}:PATH")
    shown = [Path(part).name.removesuffix(".gguf") if part == path and path else part for part in (method, *rest)]
    return Draft(":".join(shown), text, config)


def _places(config: DrafterConfig) -> list[Option]:
    """The option for draft models, if the method has one."""
    return [option for option in options_of(type(config)) if option.names_drafter]


def _values(text: str, config: DrafterConfig, path: str, settings: Sequence[str]) -> dict[str, Any]:
    """The option values of a drafter, by field."""
    values: dict[str, Any] = {}
    if path:
        if not (places := _places(config)):
            raise ConfigError(f"--draft {text}: {config.method} uses no model; leave out {path!r}")
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
    """The names of an option: its field, and its flag with and without prefix."""
    flag = option.flag.replace("-", "_")
    return {option.field, flag, flag.removeprefix(_PREFIX)}


def _value(text: str, option: Option, given: str) -> Any:
    if option.several:
        return option.value(given.split(","))
    if option.kind is bool:
        if given.lower() not in _TRUTH:
            raise ConfigError(f"--draft {text}: {option.field} takes true or false, not {given!r}")
        return _TRUTH[given.lower()]
    try:
        return option.kind(given)
    except ValueError:
        kind = "a whole number" if option.kind is int else "a number"
        raise ConfigError(f"--draft {text}: {option.field} takes {kind}, not {given!r}") from None
