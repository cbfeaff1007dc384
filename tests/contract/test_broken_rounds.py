"""A round that is broken off at any stage leaves every request before it or after it, and loses no piece of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from tiny import tiny_model

from contract.cases import PROMPTS, by_id, configs, heads_of, make
from contract.test_lossless import assert_clean
from outrider import LLM, SamplingParams, SchedulerConfig, Speculation
from outrider.drafters.base import DrafterConfig
from outrider.requests.request import Request
from outrider.requests.stopping import FinishReason, Stopper, Taken
from outrider.tree import TreeBatch

CASES = ["none", "ngram", "draft_model", "draft_model-tree", "eagle3", "dspark", "lookup_model", "specinfer"]
MOST = 16


def speaking(config: DrafterConfig | str, rule: str = "coupled") -> LLM:
    """An engine whose texts have characters of several tokens and held-back beginnings of stop strings."""
    target = tiny_model(0, SIZE)
    return LLM.from_model(
        target,
        byte_tokenizer(),
        speculation=Speculation(config, rule),
        draft_models={"good": target, "bad": tiny_model(1, SIZE)},
        heads={} if isinstance(config, str) else heads_of(config, target),
        scheduler=SchedulerConfig(prefill_chunk=4),
    )


@cache
def wishes() -> list[SamplingParams]:
    """Each but the first ends with a stop string inside its text."""
    found = [
        SamplingParams(max_tokens=MOST, temperature=float(n % 2), seed=n, logprobs=1, ignore_eos=True)
        for n in range(len(PROMPTS))
    ]
    for number, prompt in enumerate(PROMPTS[1:], 1):
        text = speaking("none").generate([prompt], found[number])[0].text
        found[number] = replace(found[number], stop=(text[3:5] or "~",))
    assert sum(wish.stop not in ((), ("~",)) for wish in found) > 1
    return found


class Broken(BaseException):
    """What nobody catches, as an interruption from the keyboard."""


def breaking(function: Callable[..., Any], at: int, raised: list[int], *, late: bool) -> Callable[..., Any]:
    """The same function, raising once at one of its calls, before or after it does its work."""
    calls = iter(range(10**9))

    def broken(*args: Any, **kwargs: Any) -> Any:
        now = next(calls) == at
        if now and not late:
            raised.append(at)
            raise Broken
        result = function(*args, **kwargs)
        if now:
            raised.append(at)
            raise Broken
        return result

    return broken


STAGES: dict[str, Callable[[LLM], tuple[Any, str]]] = {
    "schedule": lambda llm: (llm.engine.scheduler, "schedule"),
    "budgets": lambda llm: (llm.engine.controller, "budgets"),
    "reserve": lambda llm: (llm.engine.scheduler, "reserve"),
    "propose": lambda llm: (llm.engine.drafting, "propose"),
    "prune": lambda llm: (llm.engine.controller, "prune"),
    "pack": lambda llm: (TreeBatch, "pack"),
    "forward": lambda llm: (llm.engine.target, "forward"),
    "accept": lambda llm: (llm.engine.verifier, "accept"),
    "cache": lambda llm: (llm.engine.cache, "commit"),
    "commit": lambda llm: (llm.engine.scheduler, "commit"),
    "settle": lambda llm: (llm.engine.scheduler, "settle"),
    "observe": lambda llm: (llm.engine.drafting, "observe"),
    "measured": lambda llm: (llm.engine.controller, "observe"),
}


EACH_REQUEST = {"accept", "commit", "settle"}
"""Stages that take one request at a time."""


class Delivered(NamedTuple):
    """What a request and its reader have in the end."""

    request: Request
    tokens: list[int]
    text: list[str]
    ends: list[bool]


def broken_at(llm: LLM, stage: str, at: int, *, late: bool) -> tuple[list[Delivered], list[int]]:
    """Complete all prompts with one interruption; whether it was raised is the second result."""
    engine, raised = llm.engine, list[int]()
    where, name = STAGES[stage](llm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, breaking(getattr(where, name), at, raised, late=late))
        requests = [engine.submit(p, w) for p, w in zip(PROMPTS, wishes(), strict=True)]
        done = {request.id: Delivered(request, [], [], []) for request in requests}
        while not engine.idle:
            try:
                progress = engine.step()
            except Broken:
                engine.pool.check()
                continue
            for item in progress:
                done[item.request.id].tokens.extend(item.tokens)
                done[item.request.id].text.append(item.text)
                done[item.request.id].ends.append(item.finished)
    return list(done.values()), raised


def assert_whole(one: Delivered) -> None:
    """Nothing was lost and nothing came twice."""
    assert one.request.error is None
    assert one.tokens == one.request.output_ids
    assert "".join(one.text) == "".join(one.request.text)
    assert [logprob.token_id for logprob in one.request.logprobs] == one.request.output_ids
    assert one.ends == [False] * (len(one.ends) - 1) + [True]


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", CASES)
def test_a_round_broken_off_changes_no_text(case: str, stage: str, late: bool) -> None:
    """Requests of unequal lengths, prompts in chunks beside requests that decode; an interruption at each stage of the
    round and, where a stage takes one request at a time, at each of them.
    """
    expected = [speaking("none").generate([p], w)[0] for p, w in zip(PROMPTS, wishes(), strict=True)]
    for at in (0, 1, 2, 3, 5, 7) if stage in EACH_REQUEST else (0, 2, 5):
        llm = speaking(by_id(case))
        done, raised = broken_at(llm, stage, at, late=late)
        assert raised == [at] or at > 2
        for one, plain in zip(done, expected, strict=True):
            assert_whole(one)
            assert tuple(one.tokens) == plain.token_ids
            assert "".join(one.text) == plain.text
        assert_clean(llm)


@pytest.mark.parametrize("stage", STAGES)
def test_under_a_ratio_rule_a_broken_round_loses_nothing_either(stage: str) -> None:
    """The repeated round throws other dice, so the text may be another one; it is whole all the same."""
    for at in (0, 1, 2):
        llm = speaking(by_id("draft_model"), "rejection")
        done, raised = broken_at(llm, stage, at, late=at == 1)
        assert raised == ([at] if stage != "prune" else []), "pruning is not asked under a ratio rule"
        for one in done:
            assert_whole(one)
        assert_clean(llm)


@pytest.mark.parametrize("case", [case for case, _ in configs("good")])
def test_an_interruption_in_one_requests_processor_costs_no_other_a_piece(case: str) -> None:
    llm = make(by_id(case))
    alone = llm.generate(PROMPTS[0], SamplingParams(max_tokens=20))[0]

    def interrupts(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if len(history) == len(PROMPTS[1]) + 3:
            raise KeyboardInterrupt
        return logits

    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=20))
    pieces = [next(stream)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS[1], SamplingParams(max_tokens=20, processors=(interrupts,)))
    pieces += stream
    assert tuple(token for piece in pieces for token in piece.token_ids) == alone.token_ids
    assert_clean(llm)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_text_that_cannot_be_made_ends_its_own_request_alone(rule: str) -> None:
    llm = speaking(by_id("draft_model"), rule)
    alone = llm.generate([PROMPTS[0]], wishes()[0])[0]
    engine = llm.driver.between_rounds(lambda engine: engine)
    requests = [engine.submit(p, w) for p, w in zip(PROMPTS[:2], wishes(), strict=False)]
    engine.step()

    class Speechless(Stopper):
        def take(self, tokens: Sequence[int], *, failed: bool = False) -> tuple[Taken, Stopper]:
            raise ValueError("no such character")

    requests[1].stopper = Speechless(SamplingParams(), frozenset(), 8, None)
    while not engine.idle:
        engine.step()
    assert requests[1].finish_reason is FinishReason.ERROR
    assert "no such character" in (requests[1].error or "")
    assert requests[0].error is None
    assert rule != "coupled" or tuple(requests[0].output_ids) == alone.token_ids
    assert_clean(llm)
