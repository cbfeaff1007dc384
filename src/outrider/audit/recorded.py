"""Models with precomputed rows, which the redraws of the chi-square checks look up.

A recording contains, for one prefix, the rows of every text of a few tokens after it, if each row keeps only its most
probable tokens.  After those few tokens the text starts again at the prefix.  So a recording is a model with a small
vocabulary, made of the user's own rows; a long text is thousands of independent draws from a distribution that can be
enumerated, and drafts may cross the seams.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import torch

from outrider.audit.parts import rows_after
from outrider.audit.patched_requests import RefittedEngine, as_kind
from outrider.engine.engine import Engine
from outrider.kv.pool import PagedCache
from outrider.kv.state import LayerStore
from outrider.law import Laws
from outrider.models.base import HiddenLogits, TargetModel, TargetOutput, check_layers
from outrider.requests.request import Request
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Path, RequestSampler
from outrider.tree import SequenceRows, TokenTree, TreeBatch, TreeBuilder

START: Final = 0
DEAD: Final = 1
"""The state of texts that no truncated model produces.  Its row may be read, but decides nothing."""


@dataclass(frozen=True, eq=False)
class RecordedTexts:
    """The texts that can follow a prefix, numbered as states, and each model's row in every state."""

    prompt: tuple[int, ...]
    """The prefix in the recording's own token ids."""
    length: int
    """Tokens after which the text starts again."""
    after: Mapping[tuple[int, int], int]
    """(state, token) → state."""
    root: int
    """The state after the whole prefix."""
    rows: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """By model: float32 [states, vocabulary]; minus infinity for truncated tokens."""

    def model(self, name: str) -> RecordedModel:
        """One of the models."""
        return RecordedModel(self, self.rows[name])

    def with_model(self, name: str, rows: torch.Tensor) -> RecordedTexts:
        """The same with one more model."""
        return replace(self, rows={**self.rows, name: rows})

    def law(self, name: str, temperature: float) -> dict[tuple[int, ...], float]:
        """The exact probability of every text of ``length`` tokens after the prefix."""
        p = torch.softmax(self.rows[name].double() / temperature, dim=1)
        texts: dict[tuple[int, ...], tuple[float, int]] = {(): (1.0, self.root)}
        for _ in range(self.length):
            texts = {
                (*text, token): (chance * float(p[state, token]), self.after[state, token])
                for text, (chance, state) in texts.items()
                for token in torch.nonzero(p[state]).flatten().tolist()
            }
        return {text: chance for text, (chance, _) in texts.items()}

    def numbered(self) -> RecordedTexts:
        """The same distributions, with rows shifted so that a row's best logit is minus its place in :meth:`laws`.

        The shift lets the sampler recognise a row.
        """
        numbered, first = {}, 0
        for name, rows in self.rows.items():
            places = torch.arange(first, first + len(rows)).unsqueeze(1)
            numbered[name] = rows - rows.amax(dim=1, keepdim=True) - places
            first += len(rows)
        return replace(self, rows=numbered)

    def laws(self, params: SamplingParams) -> Laws:
        """The sampler's distribution for every row of every model."""
        rows = torch.cat(list(self.rows.values()))
        sampler = RequestSampler(
            params, seed=0, choice=0, vocabulary=rows.shape[1], committed=(), prompt_length=0, end_ids=()
        )
        return sampler.probabilities(rows, [()] * len(rows))


class RecordedModel(HiddenLogits):
    """A recorded model as a target.

    It keeps the state of every row in the cache and reads a row's parent there, so a row that a commit left stale or
    moved wrongly gives a wrong distribution, as in a real model.
    """

    backend = "recorded"
    row_invariant = True
    row_bytes = 0
    source: pathlib.Path | None = None
    device = torch.device("cpu")
    context_length = 65536

    def __init__(self, recording: RecordedTexts, rows: torch.Tensor) -> None:
        super().__init__(rows.shape[1])
        self._after, self._rows = recording.after, rows

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        check_layers(layers, self.layers)
        none = torch.zeros(1, 1, 1, dtype=torch.float64)
        store = cache.layer(0, lambda: LayerStore(cache.slots, none, none)).keys[0, :, 0]
        found: list[int] = []
        written: list[int] = []
        for sequence in batch.sequences:
            first = sequence.context + sequence.skip
            slots = cache.table(sequence.key).slots(0, sequence.context + sequence.tail)
            before = store[slots[max(0, sequence.context - 1) : first]].tolist() if first else []
            states = [*([] if sequence.context else [START]), *map(int, before)]
            self._walk(sequence, states)
            found += states[1 + sequence.skip :]
            written += slots[first:].tolist()
        store[written] = torch.tensor(found, dtype=torch.float64)
        rows = self._rows[torch.tensor(found)]
        return TargetOutput(rows[batch.wanted], dict.fromkeys(layers, rows))

    def _walk(self, sequence: SequenceRows, states: list[int]) -> None:
        """Append the state of every new row; ``states`` starts with the state before the layout's first row."""
        forced, tokens = len(sequence.forced), sequence.tail_tokens
        parents = sequence.tree.parents if sequence.tree else ()
        for row in range(sequence.skip, len(tokens)):
            parent = row - 1 if row <= forced else forced + parents[row - forced]
            states.append(self._after.get((states[1 + parent], tokens[row]), DEAD))


class RecordedSampler(RequestSampler):
    """A sampler that looks up the distributions of numbered rows."""

    laws: Laws

    def probabilities(self, logits: torch.Tensor, paths: Sequence[Path]) -> Laws:
        known: Laws = self.laws[(-logits.amax(dim=1)).round().long().numpy()]
        return known


def recorded_engine(laws: Laws) -> Callable[..., Engine]:
    """An engine whose requests look up their distributions.

    Args:
        laws: see :meth:`RecordedTexts.laws`.
    """
    return partial(RefittedEngine, partial(_look_up, laws))


def _look_up(laws: Laws, request: Request) -> None:
    sampler = as_kind(request.sampler, RecordedSampler)
    sampler.laws, sampler.temperature_alone = laws, None
    request.sampler = sampler


def record(
    models: Mapping[str, TargetModel], prefix: Sequence[int], *, length: int, width: int, vocabulary: int
) -> RecordedTexts:
    """Compute every row that redrawn tokens can need.

    Args:
        models: the target and its draft models.
        prefix: token ids.
        length: tokens after which the text starts again.
        width: most probable tokens that a row keeps.
        vocabulary: number of token ids that can be chosen.
    """
    builder = TreeBuilder(prefix[-1])
    kept: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in models}
    first = 0
    for _ in range(length):
        tree = builder.build()
        followers: list[set[int]] = [set() for _ in range(len(tree) - first)]
        for name, model in models.items():
            rows = _rows(model, prefix, tree)[first:, :vocabulary]
            for place, row in enumerate(rows):
                values, ids = torch.topk(row, min(width, len(row)))
                kept[name].append((values, ids))
                followers[place].update(ids.tolist())
        for place, tokens in enumerate(followers):
            for token in sorted(tokens):
                builder.add(first + place, token)
        first = len(tree)
    return _relabelled(prefix, builder.build(), kept, length)


def _rows(model: TargetModel, prefix: Sequence[int], tree: TokenTree) -> torch.Tensor:
    return rows_after(model, SequenceRows("prefix", 0, tuple(prefix[:-1]), tree)).cpu()


def _relabelled(
    prefix: Sequence[int],
    tree: TokenTree,
    kept: Mapping[str, Sequence[tuple[torch.Tensor, torch.Tensor]]],
    length: int,
) -> RecordedTexts:
    """Renumber tokens and states, so that rows cover only the tokens that occur."""
    label = {token: index for index, token in enumerate(sorted({*prefix, *tree.tokens}))}
    prompt = tuple(label[token] for token in prefix)
    root = DEAD + len(prompt)
    after = {(START, prompt[0]): DEAD + 1}
    after |= {(DEAD + place, token): DEAD + place + 1 for place, token in enumerate(prompt[1:], start=1)}
    for node in range(1, len(tree)):
        state = root + node if tree.depths[node] < length else root
        after[root + tree.parents[node], label[tree.tokens[node]]] = state
    rows = {}
    for name, found in kept.items():
        table = torch.full((root + len(found), len(label)), -torch.inf)
        table[:root, prompt[-1]] = 0.0
        for node, (values, ids) in enumerate(found):
            table[root + node, torch.tensor([label[token] for token in ids.tolist()])] = values
        rows[name] = table
    return RecordedTexts(prompt, length, after, root, rows)
