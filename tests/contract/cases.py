"""Every registered drafter, made ready for tiny models by what its config says of itself.

A new method is covered as soon as it registers: fields that take draft models or heads get tiny ones, and a method
that can branch is run as a chain and as a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tiny import VOCABULARY, tiny_model, tiny_native
from tiny_heads import tiny_head

from outrider import LLM, Speculation
from outrider.config import CacheConfig, SchedulerConfig
from outrider.drafters import config_class, methods
from outrider.drafters.base import DrafterConfig
from outrider.errors import ConfigError
from outrider.heads.checkpoint import HeadCheckpoint, write_head
from outrider.models.base import TargetModel
from outrider.options import Role, roles_of, with_roles
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
    values: dict[Role, object] = {
        Role.MODEL: model,
        Role.MODELS: ("bad", model),
        Role.MODEL_OR_HEAD: model,
        Role.HEAD: "tiny",
        Role.SHORTEST_MATCH: 1,
        Role.MIN_SURVIVAL: 0.0,  # heads that nothing has trained are sure of nothing
    }
    for name in methods():
        config = with_roles(config_class(name)(), values)
        yield name, config
        if Role.WIDTH in roles_of(config):
            yield f"{name}-tree", with_roles(config, {Role.WIDTH: 3})
        if Role.MODEL_OR_HEAD in roles_of(config):
            for ending, method in _ON_DISK.items():
                yield name + ending, with_roles(config, {Role.MODEL_OR_HEAD: head_folder(method)})


_ON_DISK = {"-head": "eagle3", "-block": "dspark"}
"""Endings of cases whose method finds a head where a model could be, and what that head was trained as."""
_FOLDERS = TemporaryDirectory(prefix="heads-")


@cache
def head_folder(method: str) -> str:
    """A tiny head on disk, for methods that find out by looking what a folder holds."""
    folder = Path(_FOLDERS.name) / method
    write_head(folder, tiny_head(method, tiny_model(0)))
    return str(folder)


def on_disk(case: str) -> bool:
    """Whether a case drafts with a head in a folder, which is for the tiny target."""
    return case.endswith(tuple(_ON_DISK))


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
    return {"tiny": tiny_head(config.method, target)} if Role.HEAD in roles_of(config) else {}


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
