"""A smaller language model with the target's vocabulary drafts a chain or a tree.

Source: Leviathan, Kalman, Matias 2023; Chen et al. 2023.  Trees grow as in EAGLE-2; see ``_growth.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from outrider.drafters._growth import CHUNK, JOINED, DynamicTree, Failures, Growth, grow_level, node_rows
from outrider.drafters.base import (
    DraftContext,
    Drafter,
    DraftSequence,
    Needs,
    Outcome,
    Workbench,
    check_rollback,
    depth_option,
    register,
    survival_option,
    tokens_option,
    width_option,
)
from outrider.errors import ConfigError
from outrider.kv.pool import PagedCache
from outrider.kv.state import Kept
from outrider.models.base import TargetModel
from outrider.options import Role, check_options, option
from outrider.price import RowPrice
from outrider.tree import SequenceRows, TokenTree, TreeBatch


@register
@dataclass(frozen=True)
class DraftModel:
    """Options of a draft model."""

    method: ClassVar[str] = "draft_model"
    automatic_rank: ClassVar[int] = 1

    model: str = option("", "Folder, hub id, .gguf file or name of the draft model.", role=Role.MODEL)
    num_steps: int = depth_option(4, "passes of the draft model", high=256)
    topk: int = width_option(1, "Branches per node")
    num_draft_tokens: int = tokens_option(0, "; 0 is one per step for a chain, four per step for a tree")
    min_survival: float = survival_option(0.0)

    def __post_init__(self) -> None:
        """Refuse values out of bounds."""
        check_options(self)

    @property
    def needs(self) -> Needs:
        return Needs(branching=self.topk > 1, price=RowPrice(self.min_survival))

    @property
    def most_nodes(self) -> int:
        per_step = 1 if self.topk == 1 else 4
        return 1 + (self.num_draft_tokens or per_step * self.num_steps)

    def build(self, workbench: Workbench) -> DraftModelDrafter:
        if not self.model:
            raise ConfigError("draft_model needs a draft model; name one as draft_model")
        return DraftModelDrafter(self, *load_drafter(workbench, self), workbench.vocabulary)

    @classmethod
    def automatic(cls, draft_models: Sequence[str]) -> DraftModel | None:
        return cls(model=draft_models[0]) if draft_models else None


def load_drafter(workbench: Workbench, config: DraftModel, index: int = 0) -> tuple[TargetModel, PagedCache]:
    """Load a draft model and make its pages.

    Raises:
        ConfigError: its vocabulary is not the target's, or its state cannot take back its drafts.
    """
    path = config.model
    model, tokenizer = workbench.load(path)
    check_rollback(config, model, path)
    if tokenizer is not None and workbench.tokenizer is not None:
        match = workbench.tokenizer.compare(tokenizer)
        if match.kind == "different":
            raise ConfigError(f"{path} cannot draft for this target: {match.reason}")
    if model.vocabulary < workbench.vocabulary:
        raise ConfigError(
            f"{path} cannot draft for this target: it knows {model.vocabulary} token ids, "
            f"the target uses {workbench.vocabulary}"
        )
    return model, workbench.pool.cache(f"draft-{index}:{path}", row_invariant=model.row_invariant)


class DraftModelDrafter(Drafter):
    """Runs a draft model on its own pages.

    Rows of the draft cache for one request:

        0 ────────────── computed │ pending ── anchor │ nodes of the growing tree
          committed, valid        │ caught up first   │ one pass per level, older nodes skipped

    The first rows may be shared pages of another request that begins with the same text.
    """

    def __init__(
        self, config: DraftModel, model: TargetModel, cache: PagedCache, vocabulary: int, source: int = 0
    ) -> None:
        self._config, self._model, self._cache = config, model, cache
        self._vocabulary, self._source, self._shape = vocabulary, source, DynamicTree(config.topk)
        self.needs = config.needs
        self._computed: dict[str, int] = {}
        self._drafts: dict[str, Growth] = {}
        self._failures = Failures()

    def propose(self, context: DraftContext) -> list[TokenTree]:
        growing = [self._begin(sequence) for sequence in context.sequences]
        active = [growth for growth in growing if growth is not None]
        self._drafts = {growth.sequence.key: growth for growth in active}
        self._catch_up(active)
        while active := [growth for growth in active if growth.grows]:
            self._grow_level(context, active)
        return self._failures.finish(context, growing)

    def observe(self, outcome: Outcome) -> None:
        kept: list[Kept] = []
        observed: list[DraftSequence] = []
        for sequence, verdict in zip(outcome.sequences, outcome.verdicts, strict=True):
            growth = self._drafts.pop(sequence.key, None)
            if growth is None or growth.computed == 0:
                continue
            accepted = verdict.tokens[: len(verdict.path)]
            kept.append(Kept(sequence.key, growth.context, [0, *growth.rows_of(accepted)]))
            observed.append(sequence)
        self._cache.commit(kept)
        for sequence, one in zip(observed, kept, strict=True):
            self._advance(sequence, one.start + len(one.rows))

    def pause(self, key: str) -> None:
        self.close(key)

    def close(self, key: str) -> None:
        self._computed.pop(key, None)
        self._drafts.pop(key, None)
        self._failures.forget(key)
        self._cache.release(key)

    def _grow_level(self, context: DraftContext, active: Sequence[Growth]) -> None:
        """Draft one more level of every tree."""
        try:
            rows = [growth.rows() for growth in active]
            logits = self._forward(rows)
        except Exception as error:  # noqa: BLE001 - see Failures
            for growth in active:
                growth.fail(error)
            return
        grow_level(context, active, logits, node_rows(rows), self._source)

    def _begin(self, sequence: DraftSequence) -> Growth | None:
        """Start a tree; None if the request is past the draft model's context or out of draft pages."""
        self._failures.check(sequence.key)
        nodes = min(self._config.most_nodes, sequence.nodes)
        depth = min(self._config.num_steps, sequence.depth, nodes - 1)
        if len(sequence.tokens) + depth > self._model.context_length:
            self.close(sequence.key)
            return None
        if sequence.key not in self._computed:
            self._computed[sequence.key] = self._cache.reuse(sequence.key, sequence.tokens, len(sequence.tokens) - 1)
        if not self._cache.extend(sequence.key, len(sequence.tokens) + self._config.topk**2 * depth):
            return None
        return Growth(
            sequence, self._shape, self.needs.price, context=len(sequence.tokens) - 1, nodes=nodes, depth=depth
        )

    def _catch_up(self, active: Sequence[Growth]) -> None:
        """Compute the committed rows before the anchor; a few may stay pending for the first drafting pass."""
        while True:
            chunks = []
            sequences = {growth.sequence.key: growth.sequence for growth in active}
            for growth in active:
                key, start = growth.sequence.key, self._computed[growth.sequence.key]
                growth.pending = tuple(growth.sequence.tokens[start : min(growth.context, start + CHUNK)])
                if len(growth.pending) > JOINED:
                    chunks.append(SequenceRows(key, start, growth.pending, None))
            if not chunks:
                return
            self._model.forward(TreeBatch.pack(chunks, self._model.device), self._cache)
            for chunk in chunks:
                self._advance(sequences[chunk.key], chunk.context + chunk.rows)

    def _advance(self, sequence: DraftSequence, computed: int) -> None:
        """Note that the first ``computed`` rows are valid, and share their full pages."""
        self._computed[sequence.key] = computed
        self._cache.share(sequence.key, sequence.tokens, computed)

    def _forward(self, rows: list[SequenceRows]) -> torch.Tensor:
        batch = TreeBatch.pack(rows, self._model.device)
        return self._model.forward(batch, self._cache).logits[:, : self._vocabulary]
