"""Rows taken over from earlier requests: less work, the same text, and nothing held or written that is another's."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Scripted, empty
from tiny import VOCABULARY, tiny_model, tiny_native
from wrapped import Wrapped

from contract.cases import BACKENDS, PROMPTS, by_id, configs, exact_pairs, make
from contract.test_lossless import GREEDY, SETTINGS, assert_clean
from outrider import LLM, CacheConfig, SamplingParams, SchedulerConfig
from outrider.completion import Completion
from outrider.config import Speculation
from outrider.drafters.base import Needs
from outrider.errors import ConfigError
from outrider.kv.prefix import PrefixIndex, PrefixNode
from outrider.models.base import TargetOutput
from outrider.models.hf.model import HFModel
from outrider.models.native.model import NativeModel
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import FinishReason

PAGE = 4
CASES = [case for case, _ in configs("good")]
COLD = CacheConfig(page_size=PAGE, prefix_cache=False)
WARM = CacheConfig(page_size=PAGE, prefix_cache=True)
LONG = [(7 * i * i + 3 * i) % VOCABULARY for i in range(42)]
"""A prompt of ten pages and two tokens."""
WITH_LOGPROBS = dataclasses.replace(GREEDY, logprobs=3)


@pytest.fixture(autouse=True)
def _shared_pages_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (HFModel, NativeModel):
        forward = model.forward

        def checked(self: Any, batch: Any, cache: Any, *rest: Any, forward: Any = forward) -> TargetOutput:
            for rows in batch.sequences:
                assert rows.context + rows.skip >= cache.table(rows.key).shared * cache.page_size
            return forward(self, batch, cache, *rest)

        monkeypatch.setattr(model, "forward", checked)


@pytest.fixture
def rows_computed(monkeypatch: pytest.MonkeyPatch) -> Callable[[LLM], list[int]]:
    """Counts the rows of every pass of an LLM's target from then on."""

    def watch(llm: LLM) -> list[int]:
        return counted_rows(llm.engine.target, monkeypatch)

    return watch


def counted_rows(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    forward = model.forward

    def counting(batch: Any, *rest: Any) -> TargetOutput:
        counts.append(len(batch.tokens))
        return forward(batch, *rest)

    monkeypatch.setattr(model, "forward", counting)
    return counts


def taken_over(prompt: list[int]) -> int:
    """Rows a second request for a prompt takes over: whole pages, and never the last two rows."""
    return max(0, len(prompt) - 2) // PAGE * PAGE


def values(entries: Any) -> list[Any]:
    return [entry and (entry.logprob, *(value for _, value in entry.top)) for entry in entries or ()]


def assert_same(mine: Completion, truth: Completion, backend: str) -> None:
    """Text and log-probabilities: to the bit where rows are invariant, else as close as rounding."""
    assert [c.token_ids for c in mine.choices] == [c.token_ids for c in truth.choices]
    assert [c.finish_reason for c in mine.choices] == [c.finish_reason for c in truth.choices]
    for one, other in zip(mine.choices, truth.choices, strict=True):
        found, expected = values(one.logprobs), values(other.logprobs)
        if BACKENDS[backend](0).row_invariant:
            assert found == expected
        else:
            for here, there in zip(found, expected, strict=True):
                assert here == pytest.approx(there, abs=1e-4)


@cache
def plain(prompt: tuple[int, ...], setting: str, tokens: int, backend: str) -> Completion:
    """What the target gives alone, cold: once for all cases."""
    params = dataclasses.replace(SETTINGS[setting], logprobs=2, max_tokens=tokens)
    return make("none", backend=backend, cache=COLD).generate(list(prompt), params)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", ["greedy", "temperature", "penalties"])
@pytest.mark.parametrize("case", CASES)
def test_a_prompt_asked_twice_and_a_next_turn(case: str, setting: str, backend: str) -> None:
    params = dataclasses.replace(SETTINGS[setting], logprobs=2, max_tokens=16)
    prompts = [PROMPTS[0], PROMPTS[3], PROMPTS[4], LONG]
    warm = make(by_id(case), backend=backend, cache=WARM)
    truth = [plain(tuple(prompt), setting, 16, backend) for prompt in prompts]
    for known in (False, True):
        for prompt, expected in zip(prompts, truth, strict=True):
            done = warm.generate(prompt, params)[0]
            assert_same(done, expected, backend)
            assert done.cached_tokens == known * taken_over(prompt)
    turns = [[*prompt, *done.token_ids, 5, 6, 7] for prompt, done in zip(prompts, truth, strict=True)]
    for turn in turns:
        done = warm.generate(turn, params)[0]
        assert_same(done, plain(tuple(turn), setting, 16, backend), backend)
        assert done.cached_tokens >= (len(turn) - 4) // PAGE * PAGE, "the answer's own rows were not taken over"
    for done, expected in zip(warm.generate(prompts, params), truth, strict=True):
        assert_same(done, expected, backend)
    assert_clean(warm)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("case", "rule"), exact_pairs())
def test_a_seed_gives_the_same_text_under_every_rule_warm_or_cold(case: str, rule: str, backend: str) -> None:
    params = dataclasses.replace(SETTINGS["temperature"], seed=21, max_tokens=12)
    for prompt in (LONG, LONG[:17]):
        truth = make(by_id(case), verifier=rule, backend=backend, cache=COLD).generate(prompt, params)[0]
        warm = make(by_id(case), verifier=rule, backend=backend, cache=WARM)
        warm.generate(prompt, dataclasses.replace(params, seed=22))
        done = warm.generate(prompt, params)[0]
        assert done.token_ids == truth.token_ids
        assert done.speculation == truth.speculation, "a cached prompt changed what is counted"
        assert done.cached_tokens == taken_over(prompt)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_samples_of_one_prompt_compute_it_once(
    case: str, backend: str, rows_computed: Callable[[LLM], list[int]]
) -> None:
    params = SamplingParams(max_tokens=1, temperature=1.0, seed=4, n=5, logprobs=2)
    truth = make(by_id(case), backend=backend, cache=COLD).generate(LONG, params)[0]
    for chunk in (8, 512):
        warm = make(by_id(case), backend=backend, cache=WARM, scheduler=SchedulerConfig(prefill_chunk=chunk))
        counts = rows_computed(warm)
        done = warm.generate(LONG, params)[0]
        assert_same(done, truth, backend)
        assert [choice.cached_tokens for choice in done.choices] == [0] + [taken_over(LONG)] * 4
        assert done.cached_tokens == 0
        assert sum(counts) == len(LONG) + 4 * (len(LONG) - taken_over(LONG))
        assert_clean(warm)


@pytest.mark.parametrize("backend", BACKENDS)
def test_prompts_admitted_together_wait_only_for_what_they_share(
    backend: str, rows_computed: Callable[[LLM], list[int]]
) -> None:
    prompts = [LONG, [*LONG[:22], 1, 2, 3, 4], [9] * 11, LONG, [*LONG[:5], 8, 8], LONG[:3]]
    truth = [make("none", backend=backend, cache=COLD).generate(prompt, WITH_LOGPROBS)[0] for prompt in prompts]
    warm = make("none", backend=backend, cache=WARM)
    counts = rows_computed(warm)
    done = warm.generate(prompts, WITH_LOGPROBS)
    for mine, expected in zip(done, truth, strict=True):
        assert_same(mine, expected, backend)
    assert [c.cached_tokens for c in done] == [0, 20, 0, 40, 4, 0]
    assert counts[0] == len(LONG) + 11 + 3, "who shares nothing does not wait"
    assert_clean(warm)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_a_tiny_pool_evicts_what_is_kept_before_it_preempts(case: str, backend: str) -> None:
    params = dataclasses.replace(GREEDY, logprobs=2, max_tokens=12)
    prompts = [[(seed * 5 + i * 3) % VOCABULARY for i in range(30)] for seed in range(5)]
    truth = [plain(tuple(prompt), "greedy", 12, backend) for prompt in prompts]
    warm = make(by_id(case), backend=backend, cache=dataclasses.replace(WARM, rows=80))
    paused = noted_pauses(warm)
    for turn in range(2):
        for prompt, expected in zip(prompts, truth, strict=True):
            assert_same(warm.generate(prompt, params)[0], expected, backend)
            warm.engine.pool.check()
            again = warm.generate(prompt, params)[0]
            assert_same(again, expected, backend)
            assert again.cached_tokens == taken_over(prompt), f"turn {turn}: the text used last was evicted first"
    assert not paused
    assert_clean(warm)


def noted_pauses(llm: LLM) -> list[str]:
    paused: list[str] = []
    pause = llm.engine.drafting.pause
    llm.engine.drafting.pause = lambda key: (paused.append(key), pause(key))[1]  # type: ignore[method-assign]
    return paused


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", ["greedy", "temperature"])
def test_preemption_while_pages_are_shared(case: str, setting: str, backend: str) -> None:
    params = SETTINGS[setting]
    prompts = [[*LONG[:9], i, *PROMPTS[i % 5]] for i in range(5)] * 2
    truth = [make("none", backend=backend, cache=COLD).generate(prompt, params)[0] for prompt in prompts[:5]] * 2
    small, chunks = dataclasses.replace(WARM, rows=88), SchedulerConfig(prefill_chunk=8)
    warm = make(by_id(case), backend=backend, cache=small, scheduler=chunks)
    paused = noted_pauses(warm)
    for mine, expected in zip(warm.generate(prompts, params), truth, strict=True):
        assert_same(mine, expected, backend)
    assert paused, "the pool was meant to run out of pages"
    assert_clean(warm)


@pytest.mark.parametrize("case", CASES)
def test_a_preempted_request_takes_over_its_own_rows(case: str, rows_computed: Callable[[LLM], list[int]]) -> None:
    warm = make(by_id(case), backend="native", cache=WARM)
    truth = make("none", backend="native", cache=COLD).generate(LONG, GREEDY)[0]
    request = warm.engine.submit(LONG, GREEDY)
    for _ in range(4):
        warm.engine.step()
    warm.engine.scheduler.preempt(request)
    warm.engine.drafting.pause(request.id)
    counts = rows_computed(warm)
    warm.engine.step()
    assert counts[0] <= PAGE + 2
    run_out(warm)
    assert tuple(request.output_ids) == truth.token_ids
    assert request.cached_tokens == 0, "its own rows are not what it found"
    assert_clean(warm)


def run_out(llm: LLM) -> None:
    while not llm.engine.idle:
        llm.engine.step()
        llm.engine.pool.check()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("steps", range(8))
def test_cancelling_the_one_that_others_wait_for(steps: int, backend: str) -> None:
    truth = make("none", backend=backend, cache=COLD).generate(LONG, GREEDY)[0]
    warm = make(by_id("draft_model"), backend=backend, cache=WARM, scheduler=SchedulerConfig(prefill_chunk=8))
    leader, follower = (warm.engine.submit(LONG, GREEDY) for _ in range(2))
    for _ in range(steps):
        warm.engine.step()
        warm.engine.pool.check()
    warm.engine.cancel(leader)
    run_out(warm)
    assert leader.finish_reason is FinishReason.CANCELLED
    assert tuple(follower.output_ids) == truth.token_ids
    assert follower.cached_tokens == min(8 * steps, taken_over(LONG)), "rows the cancelled one computed were lost"
    assert_clean(warm)


@settings(max_examples=30, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(CASES),
    st.sampled_from(["greedy", "temperature"]),
    st.sampled_from(sorted(BACKENDS)),
)
def test_requests_join_leave_and_are_cancelled(dice: random.Random, case: str, setting: str, backend: str) -> None:
    prompts = [LONG[:9], LONG[:14], [*LONG[:9], 5, 5, 5], LONG[:25], [*LONG[:20], 1, 2], *PROMPTS]
    params = dataclasses.replace(SETTINGS[setting], max_tokens=12)
    cold = make("none", backend=backend, cache=COLD)
    truth = {tuple(prompt): cold.generate(prompt, params)[0].token_ids for prompt in prompts}
    cache = dataclasses.replace(WARM, rows=dice.choice([48, 80, 400]))
    llm = make(by_id(case), cache=cache, scheduler=SchedulerConfig(prefill_chunk=5), backend=backend)
    engine = llm.engine
    waiting = [dice.choice(prompts) for _ in range(9)]
    submitted: list[Request] = []
    while waiting or not engine.idle:
        if waiting and dice.random() < 0.6:
            submitted.append(engine.submit(waiting.pop(), params))
        if submitted and dice.random() < 0.1:
            engine.cancel(dice.choice(submitted))
        if dice.random() < 0.05:
            llm.clear_prefix_cache()
        engine.step()
        engine.pool.check()
        for request in submitted:
            assert request.computed <= request.wanted - 1 or request.finish_reason is not None
    for request in submitted:
        expected, output = truth[tuple(request.inputs[: request.prompt_length])], tuple(request.output_ids)
        assert output == (expected[: len(output)] if request.finish_reason is FinishReason.CANCELLED else expected)
    assert_clean(llm)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chunk", [5, 512])
def test_prompt_logprobs_are_complete_however_warm_the_cache(chunk: int, backend: str) -> None:
    wish = dataclasses.replace(GREEDY, prompt_logprobs=2)
    truth = make("none", backend=backend, cache=COLD).generate(LONG, wish)[0]
    warm = make(by_id("draft_model"), backend=backend, cache=WARM, scheduler=SchedulerConfig(prefill_chunk=chunk))
    assert warm.generate(LONG, GREEDY)[0].token_ids == truth.token_ids
    done = warm.generate(LONG, wish)[0]
    assert_same(done, truth, backend)
    assert done.cached_tokens == 0
    assert_prompt(done.prompt_logprobs, truth.prompt_logprobs)
    together = warm.generate([LONG, LONG], [wish, GREEDY])
    assert_prompt(together[0].prompt_logprobs, truth.prompt_logprobs)
    assert [c.cached_tokens for c in together] == [0, taken_over(LONG)]
    assert_clean(warm)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("chunk", [5, 512])
def test_a_prompts_logprobs_are_computed_once_for_all_of_its_outputs(chunk: int, warm: bool) -> None:
    wish = SamplingParams(temperature=1.0, seed=3, max_tokens=12, n=4, prompt_logprobs=2)
    plain = dataclasses.replace(wish, prompt_logprobs=None)
    llm = make("none", cache=WARM if warm else COLD, scheduler=SchedulerConfig(prefill_chunk=chunk))
    truth = make("none", cache=COLD).generate(LONG, dataclasses.replace(wish, n=1))[0]
    texts = [one.token_ids for one in llm.generate(LONG, plain)[0].choices]
    counted: list[int] = []
    forward = llm.engine.target.forward

    def counting(batch: Any, *rest: Any) -> TargetOutput:
        counted.append(sum(len(rows.forced) for rows in batch.sequences if rows.all_logits))
        return forward(batch, *rest)

    llm.engine.target.forward = counting  # type: ignore[method-assign]
    done = llm.generate(LONG, wish)[0]
    assert [one.token_ids for one in done.choices] == texts
    assert_prompt(done.prompt_logprobs, truth.prompt_logprobs)
    assert sum(counted) == len(LONG) - 1
    assert_clean(llm)


def assert_prompt(mine: Any, truth: Any) -> None:
    assert len(mine) == len(LONG)
    assert mine[0] is None
    for one, other in zip(mine[1:], truth[1:], strict=True):
        assert isinstance(one, TokenLogprob)
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_prompt_logprobs_survive_preemption_half_way(rounds: int, rows_computed: Callable[[LLM], list[int]]) -> None:
    wish = dataclasses.replace(GREEDY, prompt_logprobs=2)
    truth = make("none", backend="native", cache=COLD).generate(LONG, wish)[0]
    warm = make("none", backend="native", cache=WARM, scheduler=SchedulerConfig(prefill_chunk=10))
    request = warm.engine.submit(LONG, wish)
    counts = rows_computed(warm)
    for _ in range(rounds):
        warm.engine.step()
    warm.engine.scheduler.preempt(request)
    run_out(warm)
    assert values(request.prompt_logprobs) == values(truth.prompt_logprobs)
    assert tuple(request.output_ids) == truth.token_ids
    assert sum(counts) <= len(LONG) + len(truth.token_ids) + PAGE + 1, "rows that were known were computed again"


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [
        ([*LONG[:6], 1, 1, 1, 1], 4),
        ([*LONG[:8], 1, 1], 8),
        ([*LONG[:8], 1], 4),
        ([*LONG[:3], 1, 1, 1, 1], 0),
        ([1, *LONG[1:]], 0),
        (LONG[1:], 0),
        (LONG[:3], 0),
        (LONG[:1], 0),
        (LONG, 40),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_how_much_is_taken_over(prompt: list[int], cached: int, backend: str) -> None:
    truth = make("none", backend=backend, cache=COLD).generate(prompt, WITH_LOGPROBS)[0]
    warm = make("none", backend=backend, cache=WARM)
    warm.generate(LONG, SamplingParams(max_tokens=1))
    done = warm.generate(prompt, WITH_LOGPROBS)[0]
    assert done.cached_tokens == cached
    assert_same(done, truth, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_requests_of_different_salts_share_nothing(case: str, backend: str) -> None:
    warm = make(by_id(case), backend=backend, cache=WARM)
    truth = plain(tuple(LONG), "greedy", 12, backend)
    wish = dataclasses.replace(SETTINGS["greedy"], logprobs=2, max_tokens=12)
    for turn, salt in enumerate([None, "one", "two", "one", None, "two"]):
        before = {name: len(cache_._index._nodes) for name, cache_ in warm.engine.pool._caches.items()}
        done = warm.generate(LONG, wish, cache_salt=salt)[0]
        assert_same(done, truth, backend)
        assert done.cached_tokens == (turn > 2) * taken_over(LONG), f"salt {salt!r}, turn {turn}"
        for name, cache_ in warm.engine.pool._caches.items():
            grown = len(cache_._index._nodes) - before[name]
            assert grown == (turn < 3) * len(cache_._index._nodes) // (turn + 1), f"{name} passed pages between salts"
        warm.engine.pool.check()
    assert_clean(warm)
    assert not warm.engine.scheduler._cache.salts, "the salt of a request that has ended is kept"


@pytest.mark.parametrize("case", ["eagle", "eagle3", "dspark", "draft_model"])
def test_a_request_that_ends_with_its_prompt_leaves_its_rows_under_its_salt(case: str) -> None:
    """A head computes its rows only after the round in which such a request ends."""
    warm = make(by_id(case), backend="native", cache=CacheConfig(rows=512, page_size=8))
    cached = [warm.generate(LONG, max_tokens=1, cache_salt="one")[0].cached_tokens for _ in range(2)]
    assert cached[0] == 0
    assert cached[1], "the second finds nothing"
    warm.driver.between_rounds(lambda engine: engine)
    assert not warm.engine.cache.salts
    for cache_ in warm.engine.pool._caches.values():
        assert all(isinstance(text[0], str) for text in cache_._index.root.children), "rows lie under no salt"


def test_nobody_waits_for_rows_of_another_salt(rows_computed: Callable[[LLM], list[int]]) -> None:
    warm = make("none", backend="native", cache=WARM)
    counts = rows_computed(warm)
    wishes = [dataclasses.replace(GREEDY, cache_salt=salt) for salt in ("one", "two", "one", None)]
    done = warm.generate([LONG] * 4, wishes)
    assert [answer.cached_tokens for answer in done] == [0, 0, taken_over(LONG), 0]
    assert counts[0] == 3 * len(LONG), "the first of each salt begin at once"


def test_encoder_inputs_are_part_of_the_salt() -> None:
    warm = make("none", backend="native", cache=WARM)
    found = []
    for read in (None, [1, 2], [1, 2], [12], [1, 3], None):
        request = warm.engine.submit(LONG, GREEDY)
        request.encoder_inputs = read
        warm.engine.scheduler.waiting.clear()
        warm.engine.scheduler.add(request)
        run_out(warm)
        found.append(request.cached_tokens)
    assert found == [0, 0, taken_over(LONG), 0, 0, taken_over(LONG)]
    salted = [dataclasses.replace(GREEDY, cache_salt=salt) for salt in (None, "None", "one")]
    requests = [warm.engine.submit(LONG, params) for params in salted]
    for request in requests:
        request.encoder_inputs = [1, 2]
    assert len({request.salt for request in requests}) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_suite_sees_a_key_that_ignores_a_token(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a key blind to the third token of each page hands on rows of another text."""
    exact = PrefixIndex.page_text

    def blind(self: PrefixIndex, tokens: Any, page: int) -> tuple[int, ...]:
        text = exact(self, tokens, page)
        return (*text[:2], 0, *text[3:])

    monkeypatch.setattr(PrefixIndex, "page_text", blind)
    other = [*LONG[:2], (LONG[2] + 1) % VOCABULARY, *LONG[3:]]
    truth = make("none", backend=backend, cache=COLD).generate(other, WITH_LOGPROBS)[0]
    warm = make("none", backend=backend, cache=WARM)
    warm.generate(LONG, GREEDY)
    with pytest.raises(AssertionError):
        assert_same(warm.generate(other, WITH_LOGPROBS)[0], truth, backend)


def test_it_is_on_by_default_exactly_where_rows_are_invariant() -> None:
    for backend, model in BACKENDS.items():
        llm = make(by_id("draft_model"), backend=backend)
        caches = llm.engine.pool._caches
        assert len(caches) == 2
        assert {cache.shares for cache in caches.values()} == {model(0).row_invariant}
        assert [llm.generate([5] * 40, GREEDY)[0].cached_tokens for _ in range(2)] == [
            0,
            32 * model(0).row_invariant,
        ]
    assert tiny_native().row_invariant
    assert not tiny_model().row_invariant


def test_a_draft_model_of_another_backend_follows_its_own_numbers() -> None:
    target, draft = tiny_native(0), tiny_model(1)
    llm = LLM.from_model(target, speculation=Speculation(by_id("draft_model", "bad")), draft_models={"bad": draft})
    shares = {name: cache.shares for name, cache in llm.engine.pool._caches.items()}
    assert shares == {"target": True, "draft-0:bad": False}


def test_the_setting_is_checked() -> None:
    with pytest.raises(ConfigError, match="prefix_cache must be True, False or None, not 1"):
        CacheConfig(prefix_cache=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_clearing_makes_the_next_request_cold_and_disturbs_no_running_one(
    case: str, rows_computed: Callable[[LLM], list[int]]
) -> None:
    truth = make("none", backend="native", cache=COLD).generate(LONG, GREEDY)[0]
    whole = SchedulerConfig(mixed_prompt_rows=len(LONG))  # so that one pass shows whether all rows are computed
    warm = make(by_id(case), backend="native", cache=WARM, scheduler=whole)
    warm.generate(LONG, GREEDY)
    stream = warm.stream(LONG, GREEDY)
    text = list(next(stream).token_ids)
    warm.clear_prefix_cache()
    warm.driver.between_rounds(lambda engine: engine.pool.check())
    counts = rows_computed(warm)
    cold = warm.generate(LONG, GREEDY)[0]
    for chunk in stream:
        text += chunk.token_ids
    assert (cold.cached_tokens, cold.token_ids) == (0, truth.token_ids)
    assert max(counts) >= len(LONG)
    assert tuple(text) == truth.token_ids
    assert warm.generate(LONG, GREEDY)[0].cached_tokens == taken_over(LONG)
    assert_clean(warm)


def test_draft_pages_are_taken_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make(by_id("draft_model", "good"), backend="hf", cache=WARM)
    draft = llm.engine.drafting.drafters[0]._drafter._model  # type: ignore[attr-defined]
    rows = counted_rows(draft, monkeypatch)
    first = llm.generate(LONG, GREEDY)[0]
    cold, before = sum(rows), len(rows)
    again = llm.generate(LONG, GREEDY)[0]
    assert again.speculation == first.speculation
    assert cold - sum(rows[before:]) >= taken_over(LONG)


def test_a_lagging_draft_cache_catches_up_by_computing() -> None:
    llm = make(by_id("draft_model", "good"), backend="native", cache=WARM)
    llm.generate(LONG, dataclasses.replace(GREEDY, speculate=False))  # the draft model has seen nothing of this
    done = llm.generate(LONG, GREEDY)[0]
    assert done.cached_tokens == taken_over(LONG)
    assert done.speculation.mean_accepted_length > 2.0
    assert done.token_ids == make("none", backend="native", cache=COLD).generate(LONG, GREEDY)[0].token_ids


def test_rows_of_a_request_that_ended_in_numbers_that_are_none_are_not_handed_on() -> None:
    fails = [True]

    class Poisoned(Wrapped):
        def forward(self, batch: Any, cache: Any, layers: tuple[int, ...] = ()) -> TargetOutput:
            logits = self.target.forward(batch, cache, layers).logits.clone()
            if fails[0]:
                logits.fill_(float("nan"))
            return TargetOutput(logits, {})

    llm = make("none", target=Poisoned(tiny_native(0)), cache=WARM, scheduler=SchedulerConfig(prefill_chunk=8))  # type: ignore[arg-type]
    assert llm.generate(LONG, GREEDY)[0].finish_reason is FinishReason.ERROR
    fails[0] = False
    done = llm.generate(LONG, GREEDY)[0]
    assert done.cached_tokens == 0
    assert done.token_ids == make("none", backend="native", cache=COLD).generate(LONG, GREEDY)[0].token_ids
    assert_clean(llm)


def test_a_drafter_that_reads_hidden_rows_gets_them_all(rows_computed: Callable[[LLM], list[int]]) -> None:
    config = Scripted(empty, needs=Needs(deterministic=True, hidden_layers=(0,)))
    llm = make(config, backend="native", cache=WARM)
    llm.generate(LONG, GREEDY)
    counts = rows_computed(llm)
    assert llm.generate(LONG, GREEDY)[0].cached_tokens == 0
    assert counts[0] == len(LONG)


def test_a_pass_that_fails_hands_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make("none", backend="native", cache=WARM, scheduler=SchedulerConfig(prefill_chunk=16))
    target, forward, turns = llm.engine.target, llm.engine.target.forward, iter([False, True])

    def breaks(batch: Any, *rest: Any) -> TargetOutput:
        if next(turns, False):
            raise MemoryError("no room")
        return forward(batch, *rest)

    monkeypatch.setattr(target, "forward", breaks)
    with pytest.raises(MemoryError):
        llm.generate(LONG, GREEDY)
    done = llm.generate(LONG, GREEDY)[0]
    assert done.cached_tokens == 16, "the pass that went well is kept, the other is not"
    assert done.token_ids == make("none", backend="native", cache=COLD).generate(LONG, GREEDY)[0].token_ids


def test_a_prompt_that_finds_no_room_is_not_looked_up_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make("none", backend="native", cache=dataclasses.replace(WARM, rows=80))
    llm.engine.submit(LONG, SamplingParams(max_tokens=30))
    looked: list[int] = []
    match = PrefixIndex.match

    def noted(self: PrefixIndex, tokens: Any, rows: int, salt: str | None) -> list[PrefixNode]:
        looked.append(rows)
        return match(self, tokens, rows, salt)

    monkeypatch.setattr(PrefixIndex, "match", noted)
    llm.engine.step()
    looked.clear()
    late = llm.engine.submit(list(reversed(LONG)), GREEDY)
    for _ in range(20):
        llm.engine.step()
    assert late.computed == 0
    assert len(looked) <= 2
    run_out(llm)
    assert late.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_without_an_answer_warms_the_cache(case: str) -> None:
    """Every row of it was computed, and drafters have seen them."""
    truth = make("none", backend="native", cache=COLD).generate(LONG, GREEDY)[0]
    warm = make(by_id(case), backend="native", cache=WARM)
    (empty_answer,) = warm.generate(LONG, max_tokens=0)
    assert (empty_answer.token_ids, empty_answer.finish_reason) == ((), FinishReason.LENGTH)
    assert_clean(warm)
    done = warm.generate(LONG, GREEDY)[0]
    assert (done.cached_tokens, done.token_ids) == (taken_over(LONG), truth.token_ids)
    assert_clean(warm)


def test_nobody_waits_for_rows_that_cannot_be_taken_over(rows_computed: Callable[[LLM], list[int]]) -> None:
    llm = make("none", backend="native", cache=COLD)
    counts = rows_computed(llm)
    llm.generate([LONG] * 3, dataclasses.replace(GREEDY, max_tokens=1))
    assert counts == [3 * len(LONG)]
