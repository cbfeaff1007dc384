"""A kind of layer state that is not in pages: a model that reads its whole text through one running number.

It shares the cache with a layer of paged rows, serves as target and as draft model, and nothing in the engine knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from table_model import TableModel

from contract.cases import make
from contract.test_lossless import assert_clean
from outrider import LLM, CacheConfig, SamplingParams, SchedulerConfig
from outrider.drafters import make_config
from outrider.kv.pool import PagedCache
from outrider.kv.state import Kept, Slots
from outrider.models.base import Rollback, TargetOutput
from outrider.tree import TreeBatch

VOCABULARY, STATES = 7, 31
GREEDY = SamplingParams(max_tokens=40)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [0, 6, 0, 6, 4, 4, 2, 1, 3, 5, 0, 6], [3, 3, 3, 3, 3]]


def after(state: int, token: int) -> int:
    return (5 * state + token + 1) % STATES


@dataclass
class Running:
    """Where one sequence stands."""

    snapshot: int = 0
    """The state before its last passes."""
    start: int = 0
    """The row they began at."""
    tokens: list[int] = field(default_factory=list)
    """What they read."""


class RunningStates:
    """One number for each sequence; rejected rows are undone by advancing again from the snapshot."""

    in_pages: ClassVar[bool] = False

    def __init__(self) -> None:
        self.sequences: dict[str, Running] = {}

    def read(self, key: str, context: int, skip: int, tokens: Sequence[int]) -> list[int]:
        """The state after each of some tokens of a chain."""
        running = self.sequences.setdefault(key, Running())
        if not skip:  # the last passes' rows are all committed
            for token in running.tokens:
                running.snapshot = after(running.snapshot, token)
            running.start, running.tokens = context, []
        running.tokens += tokens
        states = [running.snapshot]
        for token in running.tokens:
            states.append(after(states[-1], token))
        return states[len(states) - len(tokens) :]

    def keep(self, kept: Sequence[Kept], source: Slots, target: Slots) -> None:
        for key, start, rows in kept:
            running = self.sequences[key]
            before = start - running.start
            running.tokens = running.tokens[:before] + [running.tokens[before + row] for row in rows]

    def forget(self, key: str) -> None:
        self.sequences.pop(key, None)


class Hoarder(RunningStates):
    """Negative control: what was rejected stays read."""

    def keep(self, kept: Sequence[Kept], source: Slots, target: Slots) -> None:
        pass


class RecurrentModel(TableModel):
    """A table of the last two tokens, in pages, plus a table of the running number."""

    rollback = Rollback.CHAIN
    state_type: type[RunningStates] = RunningStates

    def __init__(self, table: torch.Tensor, seed: int = 0) -> None:
        super().__init__(table)
        self.moods = 2 * torch.randn(STATES, VOCABULARY, generator=torch.Generator().manual_seed(seed))

    def forward(self, batch: TreeBatch, cache: PagedCache, layers: tuple[int, ...] = ()) -> TargetOutput:
        output = super().forward(batch, cache, layers)
        running, states = cache.layer(1, self.state_type), []
        for sequence in batch.sequences:
            assert sequence.tree is None or sequence.tree.is_chain
            tokens = sequence.tail_tokens[sequence.skip :]
            states += running.read(sequence.key, sequence.context, sequence.skip, tokens)
        return TargetOutput(output.logits + self.moods[torch.tensor(states)[batch.wanted]], {})

    def text(self, prompt: list[int], length: int) -> tuple[int, ...]:
        """The greedy answer, every token from the whole text again."""
        tokens = list(prompt)
        for _ in range(length):
            state = 0
            for token in tokens:
                state = after(state, token)
            before = tokens[-2] if len(tokens) > 1 else 0
            tokens.append(int((self.table[before, tokens[-1]] + self.moods[state]).argmax()))
        return tuple(tokens[len(prompt) :])


def model(seed: int = 0, kind: type[RunningStates] = RunningStates) -> RecurrentModel:
    made = RecurrentModel(TableModel.random(VOCABULARY, 3).table, seed)
    made.state_type = kind
    return made


def served(method: str, draft: RecurrentModel, target: RecurrentModel, cache: CacheConfig, chunk: int = 512) -> LLM:
    options = {"model": "draft"} if method == "draft_model" else {"min_match": 1} if method != "none" else {}
    return LLM.from_model(
        target,
        speculation=make_config(method, options),
        draft_models={"draft": draft},
        cache=cache,
        scheduler=SchedulerConfig(prefill_chunk=chunk),
    )


ROOMY, TIGHT = CacheConfig(page_size=4, prefix_cache=True), CacheConfig(page_size=4, rows=88, prefix_cache=True)


@pytest.mark.parametrize("draft_seed", [0, 1], ids=["good", "bad"])
@pytest.mark.parametrize("cache", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("method", ["none", "ngram", "suffix", "draft_model"])
def test_a_recurrent_layer_gives_plain_text(method: str, cache: CacheConfig, draft_seed: int) -> None:
    llm = served(method, model(draft_seed), model(), cache, chunk=3)
    truth = [model().text(prompt, 40) for prompt in PROMPTS]
    for _ in range(2):
        done = llm.generate(PROMPTS, GREEDY)
        assert [answer.token_ids for answer in done] == truth
        assert [answer.cached_tokens for answer in done] == [0] * 4, "a page does not hold the running number"
        assert_clean(llm)
    for cache_ in llm.engine.pool._caches.values():
        assert cache_.layer(1, RunningStates).sequences == {}
    if method != "none":
        assert sum(sum(answer.speculation.accepted) for answer in done) > 0, "nothing was drafted"
    sampled = dataclasses.replace(GREEDY, temperature=1.0, seed=5)
    plain = make("none", target=model()).generate(PROMPTS, sampled)
    assert [a.token_ids for a in llm.generate(PROMPTS, sampled)] == [a.token_ids for a in plain]


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model"])
def test_the_suite_sees_a_state_that_keeps_what_was_rejected(method: str) -> None:
    llm = served(method, model(1), model(kind=Hoarder), ROOMY)
    assert [answer.token_ids for answer in llm.generate(PROMPTS, GREEDY)] != [model().text(p, 40) for p in PROMPTS]
