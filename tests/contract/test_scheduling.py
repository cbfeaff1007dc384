"""Whatever shares the pass, whenever a request joins, leaves, waits or loses its pages: each text is its own."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Scripted, random_trees, right
from tiny import VOCABULARY, tiny_model, tiny_module
from wrapped import Wrapped

from contract.cases import BACKENDS, PROMPTS, by_id, configs, make
from contract.test_lossless import GREEDY, SETTINGS, answers, assert_clean, plain
from outrider import CacheConfig, SamplingParams, SchedulerConfig
from outrider.drafters import changed
from outrider.drafters.base import DraftSequence, Needs
from outrider.models.base import TargetOutput
from outrider.models.hf.model import HFModel
from outrider.requests.request import Request
from outrider.requests.stopping import FinishReason
from outrider.tree import TokenTree

CASES = [case for case, _ in configs("good")]


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("case", CASES)
def test_prefill_chunks_share_passes_with_decoding(case: str, chunk: int) -> None:
    scheduler = SchedulerConfig(prefill_chunk=chunk, max_rows=max(chunk, 40))
    for setting in ("greedy", "temperature"):
        llm = make(by_id(case), scheduler=scheduler)
        assert [c.token_ids for c in llm.generate(PROMPTS, SETTINGS[setting])] == plain(setting)
        assert_clean(llm)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 400])
def test_prompt_lengths_around_the_chunk(length: int) -> None:
    prompt = [(7 * i) % VOCABULARY for i in range(length)]
    short = PROMPTS[1]
    expected = [make("none").generate(p, GREEDY)[0].token_ids for p in (prompt, short)]
    llm = make(by_id("draft_model"), scheduler=SchedulerConfig(prefill_chunk=64))
    passes, forward = [], llm.engine.target.forward
    llm.engine.target.forward = lambda batch, *rest: (passes.append(batch), forward(batch, *rest))[1]  # type: ignore[method-assign]
    try:
        assert [c.token_ids for c in llm.generate([prompt, short], GREEDY)] == expected
    finally:
        del llm.engine.target.forward  # the model is shared between tests
    drafts = {len(rows.tree or ()) > 1: rows.forced for batch in passes for rows in batch.sequences if not rows.forced}
    assert True in drafts, "nothing was drafted"
    for batch in passes:
        assert all(len(rows.tree or ()) <= 1 for rows in batch.sequences if rows.forced), "a prompt's pass held drafts"


@pytest.mark.parametrize("case", ["ngram", "draft_model", "draft_model-tree"])
def test_prompts_of_all_lengths_join_requests_that_are_decoding(case: str) -> None:
    """Around one chunk, two and many, each between the rounds of others that draft."""
    target = HFModel(tiny_module(), architecture="LlamaForCausalLM", context_length=2048)
    lengths = [63, 5, 64, 65, 9, 128, 1000]
    prompts = [[(7 * i + length) % VOCABULARY for i in range(length)] for length in lengths]
    wishes = [SamplingParams(max_tokens=40, temperature=n % 2, seed=n, ignore_eos=True) for n in range(len(prompts))]
    expected = make("none", target=target).generate(prompts, wishes)
    llm = make(
        changed(by_id(case), {"num_draft_tokens": 5}), target=target, scheduler=SchedulerConfig(prefill_chunk=64)
    )
    engine, requests = llm.engine, []
    for prompt, wish in zip(prompts, wishes, strict=True):
        requests.append(engine.submit(prompt, wish))
        for _ in range(2):
            engine.step()
    while not engine.idle:
        engine.step()
    assert [tuple(request.output_ids) for request in requests] == [one.token_ids for one in expected]
    assert all(request.stats.drafted for request in requests[:-1])  # the last is longer than the draft model's context


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", ["greedy", "temperature", "penalties"])
def test_preemption_by_recompute(case: str, setting: str) -> None:
    llm = make(by_id(case), cache=CacheConfig(rows=72, page_size=4), scheduler=SchedulerConfig(prefill_chunk=8))
    paused = []
    pause = llm.engine.drafting.pause
    llm.engine.drafting.pause = lambda key: (paused.append(key), pause(key))  # type: ignore[method-assign]
    assert [c.token_ids for c in llm.generate(PROMPTS, SETTINGS[setting])] == plain(setting)
    assert paused, "the pool was meant to run out of pages"
    assert_clean(llm)


@pytest.mark.parametrize("drafted", [0, 15, 31])
def test_pages_for_drafts_preempt_nobody(drafted: int) -> None:
    """Requests that just fit stay, however long their drafts are: unused pages come back when others need them."""
    config: Any = changed(by_id("draft_model", "bad"), {"num_steps": drafted, "num_draft_tokens": drafted})
    llm = make(config, cache=CacheConfig(rows=4 * 40, page_size=4))
    paused: list[str] = []
    pause = llm.engine.drafting.pause
    llm.engine.drafting.pause = lambda key: (paused.append(key), pause(key))  # type: ignore[method-assign]
    llm.generate([[n + 1] * 9 for n in range(4)], SamplingParams(max_tokens=31, ignore_eos=True))
    assert paused == []
    assert_clean(llm)


@settings(max_examples=25, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(CASES),
    st.sampled_from(["greedy", "temperature"]),
    st.sampled_from(sorted(BACKENDS)),
)
def test_requests_join_leave_and_are_cancelled_between_rounds(
    dice: random.Random, case: str, setting: str, backend: str
) -> None:
    expected = answers(setting, backend)
    cache = CacheConfig(rows=dice.choice([48, 80, 400]), page_size=4)
    llm = make(by_id(case), cache=cache, scheduler=SchedulerConfig(prefill_chunk=5), backend=backend)
    engine = llm.engine
    waiting = [dice.choice(PROMPTS) for _ in range(6)]
    submitted: list[Request] = []
    cancelled: set[str] = set()
    done: list[Request] = []
    while waiting or not engine.idle:
        if waiting and dice.random() < 0.5:
            submitted.append(engine.submit(waiting.pop(), SETTINGS[setting]))
        if submitted and dice.random() < 0.1:
            victim = dice.choice(submitted)
            cancelled.add(victim.id)
            engine.cancel(victim)
        done += [item.request for item in engine.step() if item.finished]
        engine.pool.check()
        for request in submitted:
            assert request.computed <= request.wanted - 1 or request.finish_reason is not None
    for request in done:
        text, output = expected[tuple(request.inputs[: request.prompt_length])], tuple(request.output_ids)
        if request.finish_reason is FinishReason.CANCELLED:
            assert request.id in cancelled
            assert output == text[: len(output)]
        else:
            assert output == text
    assert len(done) == 6
    assert_clean(llm)


@pytest.mark.parametrize("taken", range(1, 11))
def test_closing_a_stream_at_any_piece_leaves_nothing_behind(taken: int) -> None:
    llm = make(by_id("draft_model"))
    pieces = llm.stream(PROMPTS[0], GREEDY)
    for _, _piece in zip(range(taken), pieces, strict=False):
        pass
    pieces.close()
    assert_clean(llm)
    assert llm.generate(PROMPTS[0], GREEDY)[0].token_ids == plain("greedy")[0]


def _over_budget(sequence: DraftSequence) -> TokenTree:
    return sequence.builder().chain([1] * (sequence.nodes + 3)).build()


def _foreign_token(sequence: DraftSequence) -> TokenTree:
    return sequence.builder().chain([VOCABULARY + 5]).build()


def _wrong_root(sequence: DraftSequence) -> TokenTree:
    return TokenTree(((sequence.tokens[-1] + 1) % VOCABULARY,), (-1,), (1.0,), ())


def _raises(sequence: DraftSequence) -> TokenTree:
    raise RuntimeError("no idea")


@pytest.mark.faulty_drafter
@pytest.mark.parametrize("fault", [_over_budget, _foreign_token, _wrong_root, _raises])
def test_a_faulty_drafter_is_switched_off_and_the_text_stays(fault, caplog: pytest.LogCaptureFixture) -> None:  # type: ignore[no-untyped-def]
    truth = answers("greedy")
    healthy = random_trees(VOCABULARY, 3, truth)

    def script(sequence: DraftSequence) -> TokenTree:
        return fault(sequence) if sequence.prompt_length == 1 else healthy(sequence)

    llm = make(Scripted(script))
    with caplog.at_level(logging.WARNING):
        done = llm.generate(PROMPTS, GREEDY)
    assert [c.token_ids for c in done] == plain("greedy")
    assert len(caplog.records) == 1, "one request met the fault, and it is logged once"
    by_prompt = {len(c.prompt_token_ids): c.speculation for c in done}
    assert by_prompt[1].mean_accepted_length == 1.0
    assert by_prompt[8].mean_accepted_length > 1.0, "the others go on drafting"
    assert_clean(llm)


@pytest.mark.faulty_drafter
@pytest.mark.parametrize("call", ["adopt", "propose", "observe", "pause", "close"])
def test_a_drafter_that_raises_anywhere_changes_no_text(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make(
        Scripted(random_trees(VOCABULARY, 3, answers("greedy"))),
        cache=CacheConfig(rows=72, page_size=4),
        scheduler=SchedulerConfig(prefill_chunk=8),
    )
    met = []

    def broken(*arguments: object) -> None:
        met.append(call)
        raise RuntimeError("no idea")

    monkeypatch.setattr(llm.engine.drafting.drafters[0]._drafter, call, broken)
    assert [c.token_ids for c in llm.generate(PROMPTS, GREEDY)] == plain("greedy")
    assert met, "the fault was not met"
    assert_clean(llm)


NETWORKS = {
    "draft_model": "forward",
    "eagle": "forward",
    "eagle2": "forward",
    "eagle3": "forward",
    "medusa": "logits",
    "blockwise": "logits",
    "dspark": "block",
    "dflash": "block",
}
"""What drafters with a network call to draft with it."""


@pytest.mark.faulty_drafter
@pytest.mark.parametrize("case", NETWORKS)
def test_a_network_that_always_fails_is_told_of_once_for_each_request(
    case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = make(by_id(case, "bad"))
    drafter = llm.engine.drafting.drafters[0]._drafter

    def broken(*arguments: object) -> None:
        raise RuntimeError("out of memory, say")

    monkeypatch.setattr(drafter._runner if hasattr(drafter, "_runner") else drafter._model, NETWORKS[case], broken)
    with caplog.at_level(logging.WARNING, logger="outrider.engine.guard"):
        done = llm.generate(PROMPTS, GREEDY)
    assert [c.token_ids for c in done] == plain("greedy")
    told = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert len(told) == len(PROMPTS), told
    assert_clean(llm)


@pytest.mark.faulty_drafter
@pytest.mark.parametrize("case", ["eagle", "eagle2", "eagle3"])
def test_a_network_that_fails_while_it_is_let_go_keeps_no_pages(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a drafter computes last for a request, its pages are free afterwards."""
    llm = make(by_id(case), cache=CacheConfig(page_size=2, prefix_cache=True))
    drafter = llm.engine.drafting.drafters[0]._drafter
    compute, close, closing, met = drafter._compute, drafter.close, [], []

    def fail_while_closing(key: str, *arguments: object) -> None:
        if closing:
            met.append(key)
            raise RuntimeError("no idea")
        compute(key, *arguments)

    def watched_close(key: str) -> None:
        closing.append(key)
        try:
            close(key)
        finally:
            closing.clear()

    monkeypatch.setattr(drafter, "_compute", fail_while_closing)
    monkeypatch.setattr(drafter, "close", watched_close)
    assert [c.token_ids for c in llm.generate(PROMPTS, GREEDY)] == plain("greedy")
    assert met, "nothing was left to compute for any request"
    assert_clean(llm)


def test_drafts_leave_every_request_its_row() -> None:
    """With few rows in a pass, all requests go on side by side, and prompts come in between."""
    scheduler = SchedulerConfig(max_rows=6, prefill_chunk=3)
    llm = make(by_id("draft_model"), scheduler=scheduler)
    requests = [llm.engine.submit(prompt, GREEDY) for prompt in PROMPTS[:3]]
    for _ in range(16):
        llm.engine.step()
    assert all(len(request.output_ids) >= 4 for request in requests), [len(r.output_ids) for r in requests]
    late = llm.engine.submit(PROMPTS[3], GREEDY)
    for _ in range(6):
        llm.engine.step()
    assert len(late.output_ids) >= 1
    while not llm.engine.idle:
        llm.engine.step()
    assert [tuple(request.output_ids) for request in [*requests, late]] == plain("greedy")[:4]


def test_streams_run_side_by_side_and_beside_generate() -> None:
    llm = make(by_id("draft_model"))
    one, two = llm.stream(PROMPTS[0], GREEDY), llm.stream(PROMPTS[1], GREEDY)
    ids = [list(next(one).token_ids), list(next(two).token_ids)]
    assert llm.generate(PROMPTS[2], GREEDY)[0].token_ids == plain("greedy")[2]
    for chunk in two:
        ids[1] += chunk.token_ids
    for chunk in one:
        ids[0] += chunk.token_ids
    assert [tuple(text) for text in ids] == plain("greedy")[:2]
    assert_clean(llm)


@pytest.mark.faulty_drafter
def test_a_drafter_that_does_what_it_did_not_announce_is_switched_off() -> None:
    def branches(sequence: DraftSequence) -> TokenTree:
        builder = sequence.builder()
        builder.add(0, 1)
        builder.add(0, 2)
        return builder.build()

    llm = make(Scripted(branches, needs=Needs(deterministic=True)), verifier="rejection")
    assert [c.token_ids for c in llm.generate(PROMPTS, GREEDY)] == plain("greedy")


def test_nan_logits_end_one_request_and_spare_the_others() -> None:
    class Poisoned(Wrapped):
        @torch.inference_mode()
        def forward(self, batch, cache, layers=()):  # type: ignore[no-untyped-def]
            logits = self.target.forward(batch, cache, layers).logits.clone()
            for index, sequence in enumerate(batch.sequences):
                if sequence.key == "r2":
                    batch.tree_logits(logits, index).fill_(float("nan"))
            return TargetOutput(logits, {})

    for params in (GREEDY, SamplingParams(max_tokens=24, temperature=1.0, seed=11)):
        setting = "greedy" if params is GREEDY else "temperature"
        llm = make(by_id("ngram"), target=Poisoned(tiny_model(0)))  # type: ignore[arg-type]
        done = llm.generate(PROMPTS, params)
        assert done[1].finish_reason is FinishReason.ERROR
        assert "NaN" in (done[1].choices[0].error or "")
        assert [c.token_ids for c in done[:1] + done[2:]] == plain(setting)[:1] + plain(setting)[2:]
        assert_clean(llm)


def test_a_lone_request_fills_the_cache_to_its_last_row() -> None:
    llm = make(by_id("draft_model"), cache=CacheConfig(rows=64, page_size=4))
    done = llm.generate(PROMPTS[0], SamplingParams(max_tokens=None))[0]
    assert len(done.prompt_token_ids) + len(done.token_ids) == 64
    assert done.finish_reason is FinishReason.LENGTH
    assert done.token_ids == make("none").generate(PROMPTS[0], SamplingParams(max_tokens=56))[0].token_ids
    assert_clean(llm)


def test_drafts_shrink_before_they_vanish_in_a_small_pool() -> None:
    """64 requests in 1,024 rows: each drafts into the page it has, and no draft takes a page that a next row needs."""
    prompts = [[number % 7, number, 2, 1, number % 5, 2, 9, 4, 8, 3] for number in range(64)]
    wish = SamplingParams(max_tokens=9, ignore_eos=True)
    texts = [one.token_ids for one in make("none").generate(prompts, wish)]
    answers = {tuple(prompt): text for prompt, text in zip(prompts, texts, strict=True)}
    sizes: list[int] = []

    def script(sequence: DraftSequence) -> TokenTree:
        sizes.append(sequence.nodes)
        return right(answers)(sequence)

    llm = make(Scripted(script, most_nodes=9), cache=CacheConfig(rows=1024))
    assert [one.token_ids for one in llm.generate(prompts, wish)] == texts
    assert len(sizes) >= len(prompts)
    assert set(sizes) & set(range(2, 9)), "a request drafts all it may or nothing"
