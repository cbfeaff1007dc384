"""The contract of a target: every row of a flat pass equals the stock model run alone on that row's path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from families import VOCABULARY

from outrider.kv.pool import PagedCache
from outrider.kv.state import Kept
from outrider.models.hf.model import HFModel
from outrider.tree import SequenceRows, TokenTree, TreeBatch, TreeBuilder, root_only

FILLER = 5


@dataclass
class Outcome:
    """What one family's run showed."""

    differences: list[float] = field(default_factory=list)
    """Of each row compared, the largest difference of any logit from the stock run."""
    control: float = 0.0
    """Largest difference when every drafted row is denied its parent: what the comparison can see."""
    spread: float = 0.0
    """Standard deviation of the stock logits."""
    hidden: bool = True
    """Whether the rows of inner blocks equal the stock model's hidden states."""

    @property
    def worst(self) -> float:
        """The largest difference of any row."""
        return max(self.differences)

    @property
    def typical(self) -> float:
        """The difference of the row in the middle: in half precision a router near a tie moves single rows far."""
        return sorted(self.differences)[len(self.differences) // 2]


@dataclass(eq=False)
class StockRun:
    """The stock model, run alone on one path at a time.

    Args:
        module: the model with its own attention.
        length: run a path as the beginning of a text this long; 0 runs the path itself.
    """

    module: Any
    length: int = 0
    _memory: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)

    @torch.inference_mode()
    def __call__(self, path: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [vocabulary] after a path, and the second block's input [width] at its last token."""
        key = tuple(path)
        if key not in self._memory:
            tokens = path + [FILLER] * (self.length - len(path))
            output = self.module(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
            rows, last = output.hidden_states, len(path) - 1
            inner = rows[1] if rows is not None and len(rows) > 2 and rows[1].ndim == 3 else None
            self._memory[key] = output.logits[0, last].float(), None if inner is None else inner[0, last].float()
        return self._memory[key]


class FlatRun:
    """Three ragged sequences through four passes: chunks, trees with siblings, a late join, plain decoding."""

    def __init__(self, stock: StockRun, served: Any, context: int, seed: int = 3) -> None:
        self.outcome = Outcome()
        self._stock = stock
        self._model = HFModel(served, architecture=type(served).__name__, context_length=context)
        self._cache = PagedCache(pages=64, page_size=4)
        self._generator = torch.Generator().manual_seed(seed)
        self._texts = {"a": self._draw(6), "b": self._draw(19), "c": self._draw(4)}
        self._done = dict.fromkeys(self._texts, 0)

    def run(self) -> Outcome:
        """Make the four passes, every row compared."""
        for step in range(4):
            sequences = [self._rows(key, step) for key in self._texts if key != "c" or step]
            for sequence in sequences:
                assert self._cache.extend(sequence.key, sequence.context + sequence.rows)
            if step == 1:
                self._deny_parents(sequences)
            self._pass(sequences)
            self._cache.check()
        return self.outcome

    def _draw(self, count: int) -> list[int]:
        return torch.randint(FILLER + 1, VOCABULARY, (count,), generator=self._generator).tolist()

    def _rows(self, key: str, step: int) -> SequenceRows:
        text, done = self._texts[key], self._done[key]
        if key == "b" and step == 0:  # a chunk that does not reach the anchor
            return SequenceRows(key, 0, tuple(text[:9]), None, all_logits=True)
        plain = step >= 2 and key == "ab"[step % 2]
        tree = root_only(text[-1]) if plain else self._tree(text[-1])
        return SequenceRows(key, done, tuple(text[done:-1]), tree, all_logits=True)

    def _tree(self, anchor: int, nodes: int = 7) -> TokenTree:
        builder = TreeBuilder(anchor)
        for token in self._draw(2):  # siblings below the anchor
            builder.add(0, token)
        while len(builder) < nodes:
            parent = int(torch.randint(len(builder), (1,), generator=self._generator))
            builder.add(parent, self._draw(1)[0])
        return builder.build()

    def _paths(self, sequence: SequenceRows) -> list[list[int]]:
        text = self._texts[sequence.key]
        paths = [text[: sequence.context + row + 1] for row in range(len(sequence.forced))]
        return paths + [text + list(path) for path in (sequence.tree.paths if sequence.tree else ())]

    def _pass(self, sequences: list[SequenceRows]) -> None:
        batch = TreeBatch.pack(sequences)
        output = self._model.forward(batch, self._cache, layers=(0,))
        for index, sequence in enumerate(sequences):
            for row, path in enumerate(self._paths(sequence), start=batch.starts[index]):
                logits, inner = self._stock(path)
                self.outcome.differences.append(_distance(output.logits[row], logits))
                self.outcome.spread = max(self.outcome.spread, float(logits.std()))
                near = inner is not None and _distance(output.hidden[0][row], inner) < 1e-3
                self.outcome.hidden = self.outcome.hidden and near
            self._commit(sequence)

    def _commit(self, sequence: SequenceRows) -> None:
        """Keep the path to the last node, which skips the nodes beside it."""
        key, tree, forced = sequence.key, sequence.tree, len(sequence.forced)
        if tree is None:
            self._done[key] += forced
            return
        path: list[int] = []
        node = len(tree) - 1
        while node:
            path.insert(0, node)
            node = tree.parents[node]
        kept = [*range(forced + 1), *(forced + node for node in path)]
        self._cache.commit([Kept(key, sequence.context, kept)])
        self._done[key] += len(kept)
        self._texts[key] += [tree.tokens[node] for node in path] + self._draw(1)

    def _deny_parents(self, sequences: list[SequenceRows]) -> None:
        """The negative control; its rows are overwritten by the true pass that follows."""
        batch = TreeBatch.pack(sequences)
        for index, sequence in enumerate(sequences):
            assert sequence.tree is not None
            visible, forced = batch.visible(index), len(sequence.forced)
            for node in range(1, len(sequence.tree)):
                visible[forced + node, forced + sequence.tree.parents[node]] = False
        output = self._model.forward(batch, self._cache)
        for index, sequence in enumerate(sequences):
            for row, path in enumerate(self._paths(sequence), start=batch.starts[index]):
                self.outcome.control = max(self.outcome.control, _distance(output.logits[row], self._stock(path)[0]))


def _distance(ours: torch.Tensor, stock: torch.Tensor) -> float:
    difference = float((ours.float() - stock).abs().max())
    return difference if difference == difference else float("inf")
