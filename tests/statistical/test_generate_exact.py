"""The exact law of whole outputs, through ``LLM.generate``: every roll of every die of a request is enumerated.

Nothing is replaced but the dice: scheduler, drafter, sampler, rule, trimming and commit are the engine's own.  What a
text should weigh is worked out apart, from the target's table and the sampler's law, token by token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from table_model import TableModel

from outrider import LLM, SamplingParams, Speculation
from outrider.drafters import config_class
from outrider.drafters.base import Proposal
from outrider.engine.picker import DRAWS
from outrider.errors import ConfigError, OutriderError
from outrider.law import Law
from outrider.sampling.params import LogitsProcessor
from outrider.sampling.sampler import RequestSampler
from outrider.verify import KeyedDice, check_exact, make_verifier, registered
from outrider.verify import block as block_rule
from outrider.verify import traversal as traversal_rule
from outrider.verify.base import Draws
from statistical.enumeration import CAUGHT, Choices, EnumeratingDice, every_run, without_replacement

VOCABULARY = 4
PROMPT = [1, 2, 1, 2, 1]
END, REFUSED = 3, 2
ROUNDING = 1e-9
RATIO_RULES = [name for name, rule in registered().items() if rule.lossless and not rule.draws.target_alone]
TARGET = TableModel.random(VOCABULARY, seed=5)
DRAFTS = {"near": TARGET.near(1, 0.7), "far": TARGET.near(2, 2.0)}

Outcome = tuple[tuple[int, ...], str]
"""Token ids and why they ended."""


def refusing(token: int) -> LogitsProcessor:
    """A processor that has no answer once the output holds a token."""

    def refuse(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if token in list(history[len(PROMPT) :]):
            raise RuntimeError("refused")
        return logits

    return refuse


def no_number(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor after which logits are no numbers once the last token is a certain one."""
    return torch.full_like(logits, torch.nan) if history[-1] == REFUSED and len(history) > len(PROMPT) else logits


SAMPLERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.5},
    "top_k": {"temperature": 1.2, "top_k": 2},
    "top_p": {"temperature": 1.0, "top_p": 0.7},
    "min_p": {"temperature": 1.0, "min_p": 0.3},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    "bias": {"temperature": 1.0, "logit_bias": {0: 1.5, 3: -1.0}},
    "bad words": {"temperature": 1.0, "bad_words": ((0, 1), (2,))},
    "least tokens": {"temperature": 1.0, "min_tokens": 2, "stop_token_ids": (END,)},
    "end": {"temperature": 1.0, "stop_token_ids": (END,)},
    "end, nothing asked behind it": {
        "temperature": 1.0,
        "stop_token_ids": (REFUSED,),
        "processors": (refusing(REFUSED),),
    },
    "refused": {"temperature": 1.5, "top_k": 3, "processors": (refusing(REFUSED),)},
    "refused where lookup drafts": {"max_tokens": 4, "temperature": 1.5, "top_k": 3, "processors": (refusing(1),)},
    "no number": {"temperature": 1.0, "processors": (no_number,)},
    "nothing left": {"temperature": 1.0, "allowed_token_ids": (0, 2), "bad_words": ((2, 0), (2, 2))},
}
DRAFTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "chain": ("draft_model", {"model": "near", "num_steps": 2, "topk": 1}),
    "tree": ("draft_model", {"model": "near", "num_steps": 2, "topk": 2, "num_draft_tokens": 5}),
    "ngram": ("ngram", {}),
    "suffix": ("suffix", {"min_match": 1, "min_survival": 0.0}),
    "lookup, then chain": ("lookup_model", {"model": "far", "num_steps": 2, "min_match": 2}),
    "merged": ("specinfer", {"models": ("near", "far"), "num_steps": 1}),
}
TOKENS = 3


@contextmanager
def enumerated(choices: Choices) -> Iterator[None]:
    """Every die of the engine thrown by an enumeration; a die that is named twice is one die too few."""
    thrown: set[tuple[Any, ...]] = set()

    def dice(self: KeyedDice, node: int) -> EnumeratingDice:
        place = self._thrown.get(node, 0)
        self._thrown[node] = place + 1
        name = (self._round, self._last_word, node, place)
        assert name not in thrown, f"the die {name} was thrown twice"
        thrown.add(name)
        return EnumeratingDice(choices)

    def removed(
        sampler: RequestSampler, round_number: int, q: Law, node: int, width: int, source: int
    ) -> list[Proposal]:
        return without_replacement(choices, q, node, width)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyedDice, "coin", lambda self, node, chance: dice(self, node).coin(node, chance))
        patch.setattr(KeyedDice, "draw", lambda self, node, weights: dice(self, node).draw(node, weights))
        patch.setitem(DRAWS, Draws.WITHOUT_REPLACEMENT, removed)
        yield


def found_law(llm: LLM, params: SamplingParams) -> dict[Outcome, float]:
    """What the engine does, with its probability."""

    def program(choices: Choices) -> Outcome:
        with enumerated(choices):
            (done,) = llm.generate([PROMPT], params)
        return done.token_ids, done.finish_reason.value

    law: dict[Outcome, float] = defaultdict(float)
    for probability, outcome in every_run(program):
        law[outcome] += probability
    return law


def right_law(params: SamplingParams) -> dict[Outcome, float]:
    """What the target alone does, from its table."""
    law: dict[Outcome, float] = defaultdict(float)
    sampler = RequestSampler(
        params,
        seed=0,
        choice=0,
        vocabulary=VOCABULARY,
        committed=PROMPT,
        prompt_length=len(PROMPT),
        end_ids=params.stop_token_ids,
    )

    def go_on(path: tuple[int, ...], probability: float) -> None:
        if path and path[-1] in params.stop_token_ids:
            law[path, "stop"] += probability
        elif len(path) == params.max_tokens:
            law[path, "length"] += probability
        else:
            text = [*PROMPT, *path]
            try:
                (row,) = sampler.probabilities(TARGET.table[text[-2], text[-1]].unsqueeze(0), [path])
            except OutriderError:
                law[path, "error"] += probability
                return
            for token, p in enumerate(row.tolist()):
                if p > 0.0:
                    go_on((*path, token), probability * p)

    go_on((), 1.0)  # penalties count a path as they count committed tokens, so nothing need be committed
    return law


def off(found: dict[Outcome, float], right: dict[Outcome, float]) -> float:
    """Greatest difference of a probability."""
    return max(abs(found.get(outcome, 0.0) - right.get(outcome, 0.0)) for outcome in found.keys() | right.keys())


def engine(rule: str, drafter: str) -> LLM:
    method, options = DRAFTERS[drafter]
    return LLM.from_model(TARGET, speculation=Speculation(method, rule, options), draft_models=DRAFTS)


def exact(rule: str, drafter: str) -> bool:
    """Whether a rule says it is exact for a drafter."""
    method, options = DRAFTERS[drafter]
    try:
        check_exact(make_verifier(rule), method, config_class(method)(**options).needs)
    except ConfigError:
        return False
    return True


PAIRS = [(rule, drafter) for rule in RATIO_RULES for drafter in DRAFTERS if exact(rule, drafter)]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("rule", "drafter"), PAIRS)
def test_outputs_have_the_law_of_the_target(rule: str, drafter: str, sampler: str) -> None:
    params = SamplingParams(**{"max_tokens": TOKENS} | SAMPLERS[sampler])
    llm = engine(rule, drafter)
    found, right = found_law(llm, params), right_law(params)
    assert sum(found.values()) == pytest.approx(1.0, abs=ROUNDING)
    assert off(found, right) < ROUNDING
    llm.engine.pool.check()


FAULTS: dict[str, tuple[str, Callable[..., object]]] = {
    "rows that fail weigh nothing": ("is_unreadable", lambda law: False),
    "whatever is possible is accepted": ("ratio", lambda p, q: float(p > 0.0)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rule", [block_rule, traversal_rule], ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_faulty_rule_is_caught(rule: ModuleType, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookup drafts 1, 2 behind a first token 2, and no text goes on behind 1: the row is one that no text reads."""
    name = rule.__name__.rpartition(".")[2]
    params = SamplingParams(**SAMPLERS["refused where lookup drafts"])
    assert off(found_law(engine(name, "ngram"), params), right_law(params)) < ROUNDING
    monkeypatch.setattr(rule, *FAULTS[fault])
    assert off(found_law(engine(name, "ngram"), params), right_law(params)) > CAUGHT
