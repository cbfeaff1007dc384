"""Puts a target, a drafter and a rule together into an engine."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from outrider.config import CacheConfig, SchedulerConfig, Speculation, read_config
from outrider.control.adaptive import Adaptive
from outrider.control.base import Controller, LoadedMethod
from outrider.control.fair_share import FairShare
from outrider.control.pass_costs import PassCosts
from outrider.drafters import draftless
from outrider.drafters.base import DrafterConfig, Workbench, check_rollback
from outrider.engine.engine import Engine
from outrider.engine.profile import pass_profile
from outrider.errors import ConfigError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.heads.loading import kind_of
from outrider.kv.memory import automatic_rows, check_fits
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.options import drafters_named
from outrider.verify import check_exact, make_verifier
from outrider.verify.base import Verifier

_MOST_ROWS: Final = 65536
_log: Final = logging.getLogger(__name__)
Loader = Callable[[str], tuple[TargetModel, Tokenizer | None]]
"""Loads a draft model by name."""
Algorithms = Sequence[Any] | None
"""More drafting methods for one engine, each in any form that :meth:`outrider.config.Speculation.of` reads."""


def no_drafts(path: str) -> tuple[TargetModel, Tokenizer | None]:
    """Load nothing, where no draft model is known.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"there is no draft model {path!r} in memory")


@dataclass(frozen=True, eq=False)
class ConfiguredEngine:
    """An engine and its parts."""

    engine: Engine
    drafter_config: DrafterConfig
    verifier: Verifier
    cache_bytes: dict[str, int]
    """Maximum memory of the KV cache, in bytes, by model."""


def configured_engine(
    target: TargetModel,
    tokenizer: Tokenizer | None,
    plan: Speculation,
    *,
    load: Loader,
    heads: Mapping[str, HeadCheckpoint] | None = None,
    algorithms: Algorithms = None,
    cache: CacheConfig | Mapping[str, Any] | None = None,
    scheduler: SchedulerConfig | Mapping[str, Any] | None = None,
) -> ConfiguredEngine:
    """Make an engine.

    Args:
        target: the model served.
        tokenizer: None serves token ids alone.
        plan: how to speculate.
        load: loads draft models.
        heads: trained heads in memory, by name.
        algorithms: more methods that requests may choose; None loads those that need no draft model, as far as the
            rule is exact for them.
        cache: how many keys and values are kept.
        scheduler: how much work goes into one pass.

    Raises:
        ConfigError: an option is unknown or out of bounds, or the rule or the target cannot take a method's drafts.
        ModelError: a draft model or head cannot be served.
    """
    config = plan.drafter_config()
    verifier = make_verifier(plan.verifier)
    _check_served(config, verifier, target)
    if not verifier.lossless:
        warn_lossy(verifier.name)
    limits, pool = read_config(scheduler, SchedulerConfig()), _pool(target, read_config(cache, CacheConfig()))
    needs = {"the target": target.row_bytes}

    def load_draft(path: str) -> tuple[TargetModel, Tokenizer | None]:
        model, its_tokenizer = load(path)
        needs[str(path)] = model.row_bytes
        return model, its_tokenizer

    others = _others(algorithms, config, verifier, target)
    engine = build_engine(
        target,
        tokenizer,
        config,
        verifier,
        pool,
        load=load_draft,
        heads=heads,
        scheduler=limits,
        controller=_adaptive((config, *others), target) if plan.adaptive else None,
        others=others,
        reserve=needs.__setitem__,
    )
    check_fits(pool, needs, target.device)
    return ConfiguredEngine(engine, config, verifier, {model: pool.rows * size for model, size in needs.items()})


def build_engine(  # noqa: PLR0913 - the one place where all parts meet
    target: TargetModel,
    tokenizer: Tokenizer | None,
    config: DrafterConfig,
    verifier: Verifier,
    pool: KVPool,
    *,
    load: Loader = no_drafts,
    heads: Mapping[str, HeadCheckpoint] | None = None,
    scheduler: SchedulerConfig | None = None,
    controller: Controller | None = None,
    others: Sequence[DrafterConfig] = (),
    ids_alone: bool = False,
    reserve: Callable[[str, int], None] = lambda name, row_bytes: None,
    kind: Callable[..., Engine] = Engine,
) -> Engine:
    """Put target, drafter, rule, pages and scheduler together: the one place where an engine is made.

    Args:
        target: the model served.
        tokenizer: the target's; None where there is none.
        config: makes the drafter.
        verifier: decides.
        pool: pages for the target and for drafters that keep their own.
        load: loads draft models.
        heads: trained heads in memory, by name.
        scheduler: how much work goes into one pass.
        controller: says how much each request drafts; None lets each draft as much as its method wants.
        others: more methods, which requests may choose; each needs draft models of its own.
        ids_alone: serve token ids alone, without text and end tokens, though there is a tokenizer.
        reserve: told how many bytes one position takes in a cache of the drafter's own.
        kind: the engine's class.

    Raises:
        ConfigError: two methods would share a draft model, whose cache only one of them can keep.
        ModelError: a draft model or head cannot be served.
    """
    methods = (config, *others)
    named = [name for each in methods for name in set(drafters_named(each))]
    if len(set(named)) < len(named):
        raise ConfigError(f"two methods of one engine draft with the same model: {', '.join(named)}; give each its own")
    names = _names_of(methods)
    vocabulary = min(target.vocabulary, tokenizer.vocab_size) if tokenizer else target.vocabulary
    workbench = Workbench(target, tokenizer, pool, vocabulary, load, heads=heads or {}, reserve=reserve)
    return kind(
        target=target,
        tokenizer=None if ids_alone else tokenizer,
        pool=pool,
        drafters={name: each.build(workbench) for name, each in zip(names, methods, strict=True)},
        verifier=verifier,
        config=_sized(scheduler or SchedulerConfig(), target),
        controller=controller or _fair_share(methods),
        vocabulary=vocabulary,
    )


def _sized(config: SchedulerConfig, target: TargetModel) -> SchedulerConfig:
    """Options whose automatic values depend on the device.

    On a CPU, a pass over eight rows takes about twice as long as one over one row; a GPU computes hundreds of rows
    while it reads the weights.
    """
    if config.mixed_prompt_rows:
        return config
    return replace(config, mixed_prompt_rows=12 if target.device.type == "cpu" else 256)


def _fair_share(methods: Sequence[DrafterConfig]) -> FairShare:
    loaded = _loaded(methods)
    return FairShare(max(each.most_nodes for each in loaded), methods=loaded)


def _adaptive(methods: Sequence[DrafterConfig], target: TargetModel) -> Adaptive:
    loaded = _loaded(methods)
    return Adaptive(max(each.most_nodes for each in loaded), loaded, PassCosts(pass_profile(target)))


def _loaded(methods: Sequence[DrafterConfig]) -> list[LoadedMethod]:
    """The methods as a controller sees them."""
    return [
        LoadedMethod(name, each.most_nodes, each.needs.reads_prediction)
        for name, each in zip(_names_of(methods), methods, strict=True)
    ]


def _names_of(methods: Sequence[DrafterConfig]) -> list[str]:
    """A name for each method; one that is loaded twice is numbered."""
    before = Counter[str]()
    names = []
    for each in methods:
        before[each.method] += 1
        names.append(each.method if before[each.method] == 1 else f"{each.method}_{before[each.method]}")
    return names


def _check_served(config: DrafterConfig, verifier: Verifier, target: TargetModel) -> None:
    """Refuse a method whose drafts the target or the rule cannot take.

    Raises:
        ConfigError: naming the method.
    """
    check_rollback(config, target, "the target")
    check_exact(verifier, config.method, config.needs)


def _others(given: Algorithms, main: DrafterConfig, verifier: Verifier, target: TargetModel) -> list[DrafterConfig]:
    """The methods to load beside the main one."""
    found: dict[str, DrafterConfig] = {}
    if given is None:
        for each in draftless():
            with suppress(ConfigError):
                _check_served(each, verifier, target)
                found[each.method] = each
        found.pop(main.method, None)
        return list(found.values())
    for one in [given] if isinstance(given, str) else given:
        each = Speculation.of(one).drafter_config()
        _check_served(each, verifier, target)
        if each.method in found or (each.method == main.method and not isinstance(one, str)):
            raise ConfigError(f"algorithms: the method {each.method} is loaded twice; name it once")
        if each.method != main.method:
            found[each.method] = each
    return list(found.values())


def _pool(target: TargetModel, pages: CacheConfig) -> KVPool:
    automatic = automatic_rows(pages.contexts * target.context_length, _MOST_ROWS, target.row_bytes, target.device)
    return KVPool(pages.rows or automatic, pages.page_size, pages.prefix_cache)


@cache
def warn_lossy(rule: str) -> None:
    """Log once per rule that it changes the text."""
    _log.warning("verifier %r is lossy: the text will not be the target's own", rule)


def planned(
    speculation: Any, draft_model: str | Path | Sequence[str | Path] | None, head: str | Path | None
) -> Speculation:
    """Read the user's choice of speculation.

    Args:
        speculation: see :meth:`outrider.config.Speculation.of`.
        draft_model: what drafts for the method, or behind lookup where the method is left open.
        head: the same for a trained head.

    Raises:
        ConfigError: both are given, the method takes neither, or there is no such head.
    """
    plan = Speculation.of(speculation)
    if draft_model is not None and head is not None:
        raise ConfigError("give either draft_model or head, not both")
    if head is not None and kind_of(head) is None:
        raise ConfigError(f"head: {head} is no trained head; a model that drafts is given as draft_model")
    if head is not None:
        return plan.drafting_with(head, "head")
    return plan if draft_model is None else plan.drafting_with(draft_model, "draft_model")
