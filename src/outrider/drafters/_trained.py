"""Shared by methods with a trained head: options, finding the head, and its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.drafters import config_class, methods
from outrider.drafters.base import Needs, Workbench, depth_option, survival_option, tokens_option, width_option
from outrider.errors import ConfigError
from outrider.heads.loading import kind_of
from outrider.kv.pool import PagedCache
from outrider.models.shipped_heads import measured_options
from outrider.options import Role, check_options, option, roles_of
from outrider.price import RowPrice


def automatic_head(config: Any, draft_models: Sequence[str]) -> Any:
    """Offer a method's config if the only draft model named is a head of its kind; otherwise None."""
    if len(draft_models) == 1 and kind_of(draft_models[0]) == config.kind:
        return config(head=draft_models[0], **measured_options(config.method, draft_models[0]))
    return None


@dataclass(frozen=True)
class ChainOptions:
    """Options of a method whose head drafts a chain in one pass."""

    method: ClassVar[str]
    kind: ClassVar[str]
    """Name of the head's file in ``heads``."""
    automatic_rank: ClassVar[int] = 7

    head: str = option("", "Folder of the trained head, or name of a shipped head.", role=Role.HEAD)
    num_draft_tokens: int = tokens_option(7, "; at most as many as the head was trained for", high=64)

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Any:
        return automatic_head(cls, draft_models)

    @property
    def needs(self) -> Needs:
        return Needs(reads_hidden=True)

    @property
    def most_nodes(self) -> int:
        return 1 + self.num_draft_tokens


@dataclass(frozen=True)
class TreeOptions:
    """Options of a method whose head drafts a chain or a tree."""

    method: ClassVar[str]
    kind: ClassVar[str]
    """Name of the head's file in ``heads``."""
    automatic_rank: ClassVar[int] = 7

    head: str = option("", "Folder of the trained head, or name of a shipped head.", role=Role.HEAD)
    num_steps: int = depth_option(4, "head steps")
    topk: int = width_option(1, "Nodes to expand per level, and branches per node")
    num_draft_tokens: int = tokens_option(0, "; 0 is one per step for a chain, three per step for a tree")
    min_survival: float = survival_option(0.2)

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> Any:
        return automatic_head(cls, draft_models)

    @property
    def needs(self) -> Needs:
        return Needs(branching=self.topk > 1, reads_hidden=True, price=RowPrice(self.min_survival))

    @property
    def most_nodes(self) -> int:
        return 1 + (self.num_draft_tokens or (1 if self.topk == 1 else 3) * self.num_steps)


def head_config(path: str) -> Any:
    """Make the config of the method that runs the head in a folder, with its defaults; None if there is no head."""
    kind = kind_of(path) if path else None
    return None if kind is None else runner(kind, path)


def runner(kind: str, head: str) -> Any:
    """Make the config of the best method that runs heads of a kind, with its defaults; None if there is none."""
    every: list[Any] = [config_class(name) for name in methods()]
    runners = [config for config in every if Role.HEAD in roles_of(config) and config.kind == kind]
    best = max(runners, key=lambda config: config.automatic_rank, default=None)
    return None if best is None else best(head=head)


def built_head(workbench: Workbench, options: ChainOptions | TreeOptions) -> Any:
    """Build a method's network.

    Raises:
        ConfigError: no head was named, or it was made for another target.
        ModelError: it cannot be read.
    """
    if not options.head:
        raise ConfigError(f"{options.method} needs a trained head; name its folder as head")
    return workbench.head(options.head).build()


def head_pages(workbench: Workbench, options: ChainOptions | TreeOptions, row_bytes: int) -> PagedCache:
    """Make a head's own pages."""
    name = f"head:{options.head}"
    workbench.reserve(name, row_bytes)
    # Other rows in a pass change a head's answers only by rounding, and its drafts change no text.
    return workbench.pool.cache(name, row_invariant=workbench.target.row_invariant)
