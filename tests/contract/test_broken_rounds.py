"""A round that is broken off at any stage leaves every request before it or after it, and loses no piece of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from tiny import tiny_model

from contract.cases import PROMPTS, by_id, configs, heads_of, make
from contract.test_lossless import assert_clean
from outrider import LLM, SamplingParams, SchedulerConfig
from outrider.drafters.base import DrafterConfig
from outrider.tree import TreeBatch

CASES = ["none", "ngram", "draft_model", "draft_model-tree", "eagle3", "dspark", "lookup_model", "specinfer"]
MOST = 16


def speaking(config: DrafterConfig | str) -> LLM:
    """An engine whose texts have characters of several tokens and held-back beginnings of stop strings."""
    target = tiny_model(0, SIZE)
    return LLM.from_model(
        target,
        byte_tokenizer(),
        speculation=config,
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
    "cache": lambda llm: (llm.engine.cache, "keep"),
    "commit": lambda llm: (llm.engine.scheduler, "commit"),
    "settle": lambda llm: (llm.engine.scheduler, "settle"),
    "observe": lambda llm: (llm.engine.drafting, "observe"),
}


EACH_REQUEST = {"accept", "commit", "settle"}
"""Stages that take one request at a time."""


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", CASES)
def test_a_round_broken_off_changes_no_text(case: str, stage: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of unequal lengths, prompts in chunks beside requests that decode; an interruption at each stage of the
    round and, where a stage takes one request at a time, at each of them.
    """
    expected = [speaking("none").generate([p], w)[0] for p, w in zip(PROMPTS, wishes(), strict=True)]
    for at in (0, 1, 2, 3, 5, 7) if stage in EACH_REQUEST else (0, 2, 5):
        llm = speaking(by_id(case))
        engine, raised = llm.engine, list[int]()
        with monkeypatch.context() as patch:
            where, name = STAGES[stage](llm)
            patch.setattr(where, name, breaking(getattr(where, name), at, raised, late=late))
            requests = [engine.submit(p, w) for p, w in zip(PROMPTS, wishes(), strict=True)]
            delivered: dict[str, list[int]] = {request.id: [] for request in requests}
            texts: dict[str, str] = dict.fromkeys(delivered, "")
            finished = []
            while not engine.idle:
                try:
                    progress = engine.step()
                except Broken:
                    engine.pool.check()
                    continue
                for item in progress:
                    delivered[item.request.id] += item.tokens
                    texts[item.request.id] += item.text
                    finished += [item.request.id] * item.finished
        if at < 3:
            assert raised == [at]
        for request, plain in zip(requests, expected, strict=True):
            assert request.error is None
            assert tuple(request.output_ids) == plain.token_ids
            assert tuple(delivered[request.id]) == plain.token_ids, "a piece was lost or came twice"
            assert texts[request.id] == plain.text
            assert [one.token_id for one in request.logprobs] == list(plain.token_ids)
        assert sorted(finished) == sorted(delivered)
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
