"""Every registered drafter, made ready for tiny models by what its config says of itself.

A new method is covered as soon as it registers: fields that take draft models or heads get tiny ones, and a method
that can branch is run as a chain and as a tree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tiny import VOCABULARY, tiny_model, tiny_native
from tiny_heads import tiny_head

from outrider import LLM, Speculation
from outrider.config import CacheConfig, SchedulerConfig
from outrider.drafters.base import DrafterConfig, config_class, make_config, methods
from outrider.errors import ConfigError
from outrider.heads.checkpoint import HeadCheckpoint, write_head
from outrider.models.base import TargetModel
from outrider.verify import check_exact, make_verifier, registered

DRAFT_MODELS = {"good": "near the target", "bad": "random"}
LOSSLESS = [name for name, rule in registered().items() if rule.lossless]
"""Rules that promise to keep the target's law."""
BACKENDS = {"hf": tiny_model, "native": tiny_native}


def draft_models(backend: str = "hf") -> dict[str, TargetModel]:
    """``good`` is the target's own weights, so nearly all drafts are accepted; ``bad`` is random."""
    return {"good": BACKENDS[backend](0), "bad": BACKENDS[backend](1)}


def configs(model: str) -> Iterator[tuple[str, DrafterConfig]]:
    """Each method with a draft model where it takes one, as a chain and, where it can branch, as a tree."""
    for name in methods():
        found = config_class(name)
        fields = {item.name for item in dataclasses.fields(found)}
        options: dict[str, object] = {}
        if "model" in fields:
            options["model"] = model
        if "models" in fields:
            options["models"] = ("bad", model)
        if "head" in fields:
            options["head"] = "tiny"
        if "min_match" in fields:
            options["min_match"] = 1
        if "min_survival" in fields and fields & {"head", "model"}:
            options["min_survival"] = 0.0  # heads that nothing has trained are sure of nothing
        yield name, found(**options)
        if "topk" in fields:
            yield f"{name}-tree", found(**options, topk=3)
    for case, method in ON_DISK.items():
        options = {"model": head_folder(method), "min_match": 1, "min_survival": 0.0}
        yield case, make_config(case.partition("-")[0], options)


ON_DISK = {"lookup_model-head": "eagle3", "lookup_model-block": "dspark"}
"""Cases whose method looks into a folder for a head, and what that head was trained as; it is for the tiny target."""
_FOLDERS = TemporaryDirectory(prefix="heads-")


@cache
def head_folder(method: str) -> str:
    """A tiny head on disk, for methods that find out by looking what a folder holds."""
    folder = Path(_FOLDERS.name) / method
    write_head(folder, tiny_head(method, tiny_model(0)))
    return str(folder)


def method_cases() -> list[tuple[str, str]]:
    """(case id, draft model) for parametrisation."""
    return [
        (case, model) for model in ("good", "bad") for case, _ in configs(model) if model == "good" or takes_model(case)
    ]


def takes_model(case: str) -> bool:
    """Whether a case runs a draft model."""
    return dict(configs("good"))[case] != dict(configs("bad"))[case]


def exact_pairs() -> list[tuple[str, str]]:
    """(case id, verifier) for every pair the rules allow."""
    return [(case, rule) for case, config in configs("good") for rule in LOSSLESS if is_exact(config, rule)]


def is_exact(config: DrafterConfig, rule: str) -> bool:
    """Whether a rule may run with a method."""
    try:
        check_exact(make_verifier(rule), config.method, config.needs)
    except ConfigError:
        return False
    return True


def heads_of(config: DrafterConfig, target: TargetModel) -> dict[str, HeadCheckpoint]:
    """A tiny head where the method drafts with one."""
    return {"tiny": tiny_head(config.method, target)} if getattr(config, "head", "") else {}


def make(
    config: DrafterConfig | str,
    *,
    verifier: str = "coupled",
    target: TargetModel | None = None,
    backend: str = "hf",
    cache: CacheConfig | None = None,
    scheduler: SchedulerConfig | None = None,
) -> LLM:
    """An LLM on a tiny target."""
    target = target or BACKENDS[backend](0)
    return LLM.from_model(
        target,
        speculation=Speculation(config, verifier=verifier),
        draft_models=draft_models(backend),
        heads={} if isinstance(config, str) else heads_of(config, target),
        cache=cache,
        scheduler=scheduler,
    )


def by_id(case: str, model: str = "good") -> DrafterConfig:
    """The config of a case id."""
    return dict(configs(model))[case]


PROMPTS: list[list[int]] = [[1, 2, 3, 4, 5, 1, 2, 3], [7] * 6, [9, 8, 7, 6, 5], [11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]
assert max(map(max, PROMPTS)) < VOCABULARY
