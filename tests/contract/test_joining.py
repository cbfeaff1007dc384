"""Requests that join, leave and are set back at random, in pools, pages and chunks of every size: each text is its own.

Every outcome (tokens, text, reason, stop, log-probabilities) is compared bit for bit with a plain run of that request
alone, in a pool with room for everything.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from byte_text import SIZE, byte_tokenizer
from tiny import tiny_model, tiny_native

from contract.cases import by_id, configs, heads_of, on_disk
from contract.test_lossless import assert_clean, target_only_rules
from outrider import LLM, CacheConfig, Choice, SamplingParams, SchedulerConfig, Speculation
from outrider.drafters.base import DrafterConfig
from outrider.models.base import TargetModel
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import FinishReason

CASES = [case for case, _ in configs("good") if not on_disk(case)]
"""The heads on disk are made for a target of another vocabulary."""
SEEDS = range(3)
SHORTEST_POOL = 64
"""Rows: what the longest request needs by itself."""
TEXTS = ["the hat is ", "ha ha ha ha ha", "is he the hat? he is the hat; ", "x", "the the he he is is the the he "]


@dataclass(frozen=True)
class Asked:
    """One request of a script, and the round at which it joins or is cancelled."""

    prompt: tuple[int, ...]
    params: SamplingParams
    joins: int
    leaves: int | None


@cache
def target(backend: str, seed: int) -> TargetModel:
    return {"hf": tiny_model, "native": tiny_native}[backend](seed, SIZE)


def engine(
    config: DrafterConfig | str, backend: str, rule: str, cache: CacheConfig | None, scheduler: SchedulerConfig | None
) -> LLM:
    return LLM.from_model(
        target(backend, 0),
        byte_tokenizer(),
        speculation=Speculation(config, rule),
        draft_models={"good": target(backend, 0), "bad": target(backend, 1)},
        heads={} if isinstance(config, str) else heads_of(config, target(backend, 0)),
        cache=cache,
        scheduler=scheduler,
    )


def script(dice: random.Random) -> list[Asked]:
    """Requests whose ends fall anywhere: strings, tokens, lengths, none; greedy and sampled; with every processing."""
    asked = []
    for _ in range(dice.randrange(4, 9)):
        text = "".join(dice.choice(TEXTS) for _ in range(dice.randrange(1, 3)))
        prompt = byte_tokenizer().encode(text)[: dice.randrange(1, 33)]
        most = dice.randrange(1, SHORTEST_POOL - 34)
        params = SamplingParams(
            max_tokens=most,
            temperature=dice.choice([0.0, 0.0, 0.8, 1.5]),
            top_p=dice.choice([1.0, 0.9]),
            seed=dice.randrange(2**32),
            stop=tuple(dice.sample(["ha", "he ", "i", "e", " t"], dice.randrange(3))),
            stop_token_ids=tuple(dice.sample(range(SIZE), 4)),
            min_tokens=dice.randrange(min(4, most)),
            repetition_penalty=dice.choice([1.0, 1.0, 1.2]),
            logprobs=dice.choice([None, 0, 2]),
            prompt_logprobs=dice.choice([None, None, None, 1]),
            ignore_eos=dice.random() < 0.5,
            speculate=dice.random() < 0.85,
        )
        leaves = dice.randrange(1, 20) if dice.random() < 0.15 else None
        asked.append(Asked(tuple(prompt), params, dice.randrange(12), leaves))
    return asked


def outcome(choice: Choice, prompt_logprobs: Sequence[TokenLogprob | None] | None, backend: str) -> tuple[object, ...]:
    """All of it where rows do not depend on their company; elsewhere log-probabilities may differ in the last bits."""
    ended = choice.token_ids, choice.text, choice.finish_reason, choice.stop_reason, choice.error
    if target(backend, 0).row_invariant:
        return (*ended, choice.logprobs, prompt_logprobs)
    known = [choice.logprobs, prompt_logprobs]
    return (*ended, *(one and [each and each.token_id for each in one] for one in known))


def alone(backend: str, one: Asked) -> tuple[object, ...]:
    (done,) = _plain(backend).generate([list(one.prompt)], one.params)
    return outcome(done.choices[0], done.prompt_logprobs, backend)


@cache
def _plain(backend: str) -> LLM:
    return engine("none", backend, "coupled", CacheConfig(prefix_cache=False), None)


def run(llm: LLM, asked: list[Asked]) -> list[Request]:
    """Play a script, round by round."""
    requests: dict[int, Request] = {}
    rounds = 0
    while len(requests) < len(asked) or not llm.engine.idle:
        for number, one in enumerate(asked):
            if number not in requests and rounds >= one.joins:
                requests[number] = llm.engine.submit(one.prompt, one.params)
            if one.leaves is not None and number in requests and rounds == one.joins + one.leaves:
                llm.engine.cancel(requests[number])
        llm.engine.step()
        llm.engine.pool.check()
        rounds += 1
        assert rounds < 2000, "the requests never end"
    return [requests[number] for number in range(len(asked))]


@pytest.mark.parametrize("backend", ["hf", "native"])
@pytest.mark.parametrize("case", CASES)
def test_every_text_is_what_it_is_alone(case: str, backend: str) -> None:
    for seed in SEEDS:
        dice = random.Random(f"{case} {backend} {seed}")
        page = dice.choice([1, 3, 8, 16])
        rows = dice.choice([SHORTEST_POOL, SHORTEST_POOL + 17, 150, 400])
        chunk, most_rows = dice.choice([1, 2, 5, 64]), dice.choice([8, 24, 2048])
        llm = engine(
            by_id(case),
            backend,
            dice.choice(target_only_rules()),
            CacheConfig(rows=rows + page, page_size=page, prefix_cache=dice.random() < 0.6 and backend == "native"),
            SchedulerConfig(max_running=dice.choice([2, 4, 256]), max_rows=max(chunk, most_rows), prefill_chunk=chunk),
        )
        asked = script(dice)
        for one, request in zip(asked, run(llm, asked), strict=True):
            wanted = request.params.prompt_logprobs is not None
            found = outcome(Choice.of(request), tuple(request.prompt_logprobs) if wanted else None, backend)
            expected = alone(backend, one)
            if request.finish_reason is FinishReason.CANCELLED:
                assert one.leaves is not None
                assert tuple(request.output_ids) == expected[0][: len(request.output_ids)]  # type: ignore[index]
                assert str(expected[1]).startswith("".join(request.text))
            else:
                assert found == expected, f"seed {seed}: {one}"
        assert_clean(llm)
