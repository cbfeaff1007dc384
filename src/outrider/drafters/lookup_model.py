"""Looks up a long match in the text first; if there is none, uses a draft model or head.

The choice depends only on the committed text, so every acceptance rule stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from outrider.drafters._trained import head_config, runner
from outrider.drafters.base import (
    DraftContext,
    Drafter,
    DrafterConfig,
    Needs,
    SeveralDrafters,
    Workbench,
    depth_option,
    register,
    survival_option,
    width_option,
)
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.suffix import Suffix
from outrider.errors import ConfigError
from outrider.models.shipped_heads import measured_options
from outrider.options import Role, check_options, option, roles_of, with_roles
from outrider.tree import TokenTree


@register
@dataclass(frozen=True)
class LookupModel:
    """Options of lookup before a draft model or head."""

    method: ClassVar[str] = "lookup_model"
    automatic_rank: ClassVar[int] = 8

    model: str = option(
        "",
        "Draft model (folder, hub id, .gguf file or name), or trained head (folder or name of a shipped head).",
        role=Role.MODEL_OR_HEAD,
    )
    num_steps: int = depth_option(4, "steps of the draft model or token-by-token head", high=256)
    topk: int = width_option(1, "Branches per node of a draft model or head")
    num_draft_tokens: int = option(16, "Maximum looked-up tokens per round.", low=0, high=1024, role=Role.TOKENS)
    min_survival: float = survival_option(0.2, "a draft of a model or head that drafts token by token")
    min_match: int = option(
        4,
        "Shortest match that replaces the draft model. Raise it if looked-up drafts are rejected.",
        low=1,
        high=1024,
        flag="speculative-lookup-min-match",
        role=Role.SHORTEST_MATCH,
    )

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @property
    def needs(self) -> Needs:
        return replace(self._then.needs, deterministic=True, reads_prediction=True)

    @property
    def most_nodes(self) -> int:
        return max(self._first.most_nodes, self._then.most_nodes)

    def build(self, workbench: Workbench) -> LookupModelDrafter:
        if not self.model:
            raise ConfigError(
                f"{self.method} needs a draft model or a trained head; name one as draft_model or head, or with "
                "--draft-model"
            )
        known = workbench.heads.get(self.model)
        then = self._then if known is None else self._wished(runner(known.kind, self.model))
        return LookupModelDrafter(self, self._first.build(workbench), then.build(workbench))

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> LookupModel | None:
        if len(draft_models) != 1:
            return None
        return cls(model=draft_models[0], **measured_options(cls.method, draft_models[0]))

    @property
    def _first(self) -> Suffix:
        return Suffix(num_draft_tokens=self.num_draft_tokens, min_match=self.min_match)

    @cached_property
    def _then(self) -> DrafterConfig:
        return self._wished(head_config(self.model) or DraftModel(model=self.model))

    def _wished(self, then: Any) -> DrafterConfig:
        """Give a method the options that it shares with this one."""
        if self.topk > 1 and Role.WIDTH not in roles_of(then):
            raise ConfigError(f"lookup_model: {self.model} is a head that drafts only chains; set topk to 1")
        wishes = {Role.DEPTH: self.num_steps, Role.WIDTH: self.topk, Role.MIN_SURVIVAL: self.min_survival}
        wished: DrafterConfig = with_roles(then, wishes)
        return wished


class LookupModelDrafter(SeveralDrafters):
    """Uses the second drafter for the sequences for which the first one proposes nothing."""

    def __init__(self, config: LookupModel, first: Drafter, then: Drafter) -> None:
        self.needs = replace(config.needs, hidden_layers=then.needs.hidden_layers)
        self._first, self._then = first, then
        super().__init__([first, then])

    def propose(self, context: DraftContext) -> list[TokenTree]:
        trees = self._first.propose(context)
        silent = [index for index, tree in enumerate(trees) if len(tree) == 1]
        if silent:
            rest = replace(context, sequences=tuple(context.sequences[index] for index in silent))
            for index, tree in zip(silent, self._then.propose(rest), strict=True):
                trees[index] = tree
        return trees
