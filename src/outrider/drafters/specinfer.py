"""SpecInfer: several draft models draft trees; equal paths are merged and verified in one pass.

Source: Miao et al., "SpecInfer", ASPLOS 2024 (arXiv 2305.09781), §3-4.  Every draw keeps its model and its law, so
that multi-step verification sees the multiplicities it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from typing import ClassVar

from outrider.drafters.base import (
    DraftContext,
    Needs,
    SeveralDrafters,
    Workbench,
    depth_option,
    register,
    tokens_option,
    width_option,
)
from outrider.drafters.draft_model import DraftModel, DraftModelDrafter, load_drafter
from outrider.errors import ConfigError
from outrider.heads.checkpoint import CONFIG
from outrider.options import Role, check_options, option
from outrider.sampling.noise import MOST_SOURCES
from outrider.tree import TokenTree


@register
@dataclass(frozen=True)
class SpecInfer:
    """Options of merged draft models."""

    method: ClassVar[str] = "specinfer"
    automatic_rank: ClassVar[int] = 9

    models: tuple[str, ...] = option(
        (),
        "Draft models (folders, hub ids, .gguf files or names), or a folder with them as 1, 2, …",
        role=Role.MODELS,
    )
    num_steps: int = depth_option(4, "passes of each draft model", high=256)
    topk: int = width_option(1, "Branches per node of each model's tree")
    num_draft_tokens: int = tokens_option(0, ", split equally among the models; 0 uses each model's default")

    def __post_init__(self) -> None:
        """Refuse values out of bounds, and look for models in a folder."""
        check_options(self)
        object.__setattr__(self, "models", tuple(part for model in self.models for part in members_in(model)))
        if len(self.models) > MOST_SOURCES:
            raise ConfigError(f"specinfer takes at most {MOST_SOURCES} draft models, not {len(self.models)}")

    @property
    def needs(self) -> Needs:
        several = len(self.models) > 1
        return Needs(branching=several or self.topk > 1, merged=several)

    @property
    def most_nodes(self) -> int:
        return 1 + sum(self._single(index).most_nodes - 1 for index in range(len(self.models)))

    def build(self, workbench: Workbench) -> SpecInferDrafter:
        if not self.models:
            raise ConfigError("specinfer needs draft models; name them as draft_model")
        return SpecInferDrafter(
            self,
            [
                DraftModelDrafter(single, *load_drafter(workbench, single, index), workbench.vocabulary, index)
                for index, single in enumerate(map(self._single, range(len(self.models))))
            ],
        )

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> SpecInfer | None:
        config = cls(models=tuple(draft_models))
        return config if len(config.models) > 1 else None

    def _single(self, index: int) -> DraftModel:
        """Options of one model; its share of the tokens is rounded up for the first models."""
        each, left = divmod(self.num_draft_tokens, len(self.models))
        share = each + (index < left)
        steps = 0 if self.num_draft_tokens and not share else self.num_steps
        return DraftModel(model=self.models[index], num_steps=steps, topk=self.topk, num_draft_tokens=share)


def members_in(model: str | Path) -> tuple[str, ...]:
    """The draft models ``1``, ``2``, … in a folder that is no model itself; otherwise what was named."""
    folder = Path(model)
    if (folder / CONFIG).exists():
        return (str(model),)
    members = takewhile(lambda member: (member / CONFIG).exists(), (folder / str(number) for number in count(1)))
    return tuple(map(str, members)) or (str(model),)


class SpecInferDrafter(SeveralDrafters):
    """Merges the trees of several draft models."""

    def __init__(self, config: SpecInfer, drafters: Sequence[DraftModelDrafter]) -> None:
        self.needs = config.needs
        super().__init__(drafters)

    def propose(self, context: DraftContext) -> list[TokenTree]:
        count = len(self._drafters)
        builders = [sequence.builder() for sequence in context.sequences]
        for source, drafter in enumerate(self._drafters):
            # Shares are fixed beforehand: how much one model may draft must not depend on what another drew.
            shares = [
                replace(one, nodes=1 + (one.nodes - 1) // count + (source < (one.nodes - 1) % count))
                for one in context.sequences
            ]
            for builder, tree in zip(builders, drafter.propose(replace(context, sequences=tuple(shares))), strict=True):
                builder.graft(tree, source)
        return [builder.build() for builder in builders]
