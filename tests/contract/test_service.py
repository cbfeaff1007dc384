"""Who is served next, who is preempted, and how many prompt rows decoding requests must bear: never a text changes."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from table_model import TableModel
from tiny import VOCABULARY

from contract.cases import BACKENDS, PROMPTS, by_id, make
from contract.test_lossless import SETTINGS, assert_clean, plain
from outrider import LLM, CacheConfig, SamplingParams, SchedulerConfig
from outrider.engine import waiting
from outrider.engine.engine import Engine
from outrider.engine.waiting import WaitingQueue
from outrider.metrics import RoundStats
from outrider.requests.request import Request
from outrider.requests.turn import Turn

TABLE = TableModel.random(8, 0)


def engine(rows: int = 4096, page_size: int = 4, **options: Any) -> Engine:
    cache = CacheConfig(rows=rows, page_size=page_size, prefix_cache=False)
    return LLM.from_model(TABLE, speculation=None, cache=cache, scheduler=SchedulerConfig(**options)).engine


def ask(made: Engine, length: int = 2, tokens: int = 4, **options: Any) -> Request:
    return made.submit([1] * length, SamplingParams(max_tokens=tokens, ignore_eos=True, **options))


def ended(made: Engine) -> list[str]:
    """Ids in the order in which the requests end."""
    found = []
    while not made.idle:
        found += [item.request.id for item in made.step() if item.finished]
        made.pool.check()
    return found


def test_the_lowest_number_is_served_first_and_equals_in_order() -> None:
    made = engine(max_running=1)
    for priority in (0, 5, -1, 0, 5, -1):
        ask(made, priority=priority)
    assert ended(made) == ["r3", "r6", "r1", "r4", "r2", "r5"]


def test_the_tenant_with_the_fewest_running_requests_comes_next() -> None:
    made = engine(max_running=2)
    for tenant in ("a", "a", "a", "a", "b", "b"):
        ask(made, tenant=tenant)
    made.step()
    assert [request.id for request in made.scheduler.running] == ["r1", "r5"]
    assert ended(made) == ["r1", "r5", "r2", "r6", "r3", "r4"]


def test_the_salt_is_the_tenant_where_none_is_named() -> None:
    made = engine(max_running=2)
    for options in ({"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "a", "tenant": "b"}, {}):
        ask(made, **options)
    made.step()
    assert [request.id for request in made.scheduler.running] == ["r1", "r3"]


def test_nobody_starves_beside_a_tenant_that_always_asks() -> None:
    made = engine(max_running=1)
    for _ in range(3):
        ask(made, tenant="many")
    late = ask(made, tenant="one")
    for rounds in itertools.count():
        if late.finish_reason is not None:
            break
        ask(made, tenant="many")
        made.step()
        assert rounds < 20


def test_a_tenant_with_new_names_for_each_request_does_not_pass_the_oldest() -> None:
    made = engine(max_running=1)
    first, second = ask(made, tenant="a"), ask(made, tenant="a")
    for number in range(8):
        ask(made, tenant=f"other {number}")
    assert ended(made)[:2] == [first.id, second.id]


@pytest.mark.parametrize("seed", range(20))
def test_the_queue_gives_the_order_that_its_rule_says(seed: int) -> None:
    dice = random.Random(seed)
    made = engine(max_running=1)
    queue, left = WaitingQueue(), []
    for _ in range(30):
        request = ask(made, priority=dice.randrange(3), tenant=dice.choice("abc"))
        request.preempted = dice.random() < 0.2
        left.append(request)
    for request in dice.sample(left, len(left)):
        queue.add(request)
    running = {tenant: dice.randrange(4) for tenant in "abc"}
    passed: list[Request] = []
    for request in queue.in_order(running):

        def order(one: Request) -> tuple[Any, ...]:
            fair = 0 if one.preempted else running[str(one.tenant)]
            return one.params.priority, not one.preempted, fair, one.arrival

        assert request is min((one for one in left if one not in passed), key=order)
        if dice.random() < 0.5:
            passed.append(request)
        else:
            queue.remove(request)
            left.remove(request)
            running[str(request.tenant)] += 1
    assert sorted(one.arrival for one in queue) == sorted(one.arrival for one in left)
    assert passed == sorted(left, key=lambda one: passed.index(one))
    assert len(queue) == len(left)


def test_the_lowest_priority_is_preempted_and_of_equals_the_newest() -> None:
    made = engine(rows=64, watermark=0.0)
    requests = [ask(made, 8, 24, priority=priority) for priority in (1, 0, 1, 0)]
    preempted = []
    while not made.idle:
        before = list(made.scheduler.running)
        made.step()
        stayed = [one for one in before if not one.preempted]
        preempted += [(one, stayed) for one in before if one.preempted]
    assert preempted[0][0] is requests[2]
    assert made.scheduler.counts.preemptions == len(preempted) > 1
    assert all(one.service_order > other.service_order for one, stayed in preempted for other in stayed)


def test_a_preempted_request_goes_on_before_new_ones() -> None:
    made = engine(rows=64, watermark=0.0)
    old = [ask(made, 8, 30) for _ in range(3)]
    while not any(one.preempted for one in old):
        made.step()
    new = ask(made, 4, 2, tenant="new")
    while new in made.scheduler.waiting:
        made.step()
    assert not any(one.preempted for one in old)


@pytest.mark.parametrize(("watermark", "runs"), [(0.0, 2), (0.25, 1)])
def test_a_new_prompt_leaves_the_watermark_free(watermark: float, runs: int) -> None:
    made = engine(rows=64, watermark=watermark)
    ask(made, 30, 4), ask(made, 20, 4)
    made.step()
    assert len(made.scheduler.running) == runs
    assert sorted(ended(made)) == ["r1", "r2"]


def test_a_prompt_that_fills_the_cache_runs_alone() -> None:
    made = engine(rows=64, watermark=0.5)
    ask(made, 60, 4), ask(made, 4, 4)
    assert ended(made) == ["r1", "r2"]


def test_the_watermark_saves_preemptions() -> None:
    counts = []
    for watermark in (0.0, 0.3):
        made = engine(rows=256, watermark=watermark)
        for _ in range(24):
            ask(made, 24, 24)
        ended(made)
        counts.append(made.scheduler.counts.preemptions)
    assert counts[1] < counts[0]


class Rows:
    """Prompt rows and decoding requests of every round."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        self.seen.append((stats.rows.prompt, stats.rows.decode))


@pytest.mark.parametrize(("bound", "used"), [(1, 8), (4, 8), (9, 9), (16, 16)])
def test_prompts_get_few_rows_beside_decoding_requests_all_together(bound: int, used: int) -> None:
    made, rows = engine(mixed_prompt_rows=bound, prefill_chunk=64), Rows()
    for _ in range(5):
        ask(made, 4, 400)
    made.step()
    made.observers.append(rows)
    for length in (100, 3, 70):
        ask(made, length, 400)
    while any(request.pending > 1 for request in made.scheduler.running) or made.scheduler.waiting:
        made.step()
    assert all(prompt <= max(bound, int(1.75 * decode)) for prompt, decode in rows.seen)
    assert rows.seen[0] == (used, 5), "the bound is used"


def test_prompts_alone_get_whole_chunks() -> None:
    made, rows = engine(mixed_prompt_rows=1, prefill_chunk=64), Rows()
    made.observers.append(rows)
    ask(made, 100), ask(made, 100)
    made.step()
    assert rows.seen == [(128, 0)]


@pytest.mark.parametrize(("most", "spare"), [(2, 14), (3, 6)])
def test_who_waits_keeps_rows_from_drafts_only_where_another_request_may_run(most: int, spare: int) -> None:
    made = engine(rows=16, max_running=most, max_rows=16, mixed_prompt_rows=8)
    for length in (2, 2, 12):  # the third finds no pages in any case
        ask(made, length, tokens=3)
    made.step()
    assert (len(made.scheduler.running), len(made.scheduler.waiting)) == (2, 1)
    assert made.scheduler._spare_rows() == spare


def test_the_automatic_bound_is_for_the_device() -> None:
    assert engine().scheduler._config.mixed_prompt_rows == 12


def test_admissions_and_prompt_tokens_are_counted_once_per_request() -> None:
    made = make("none", cache=CacheConfig(page_size=4, prefix_cache=True)).engine
    for _ in range(2):
        request = made.submit(list(range(1, 21)), SamplingParams(max_tokens=2))
        while not made.idle:
            made.step()
    counts = made.scheduler.counts
    assert (counts.admissions, counts.prompt_tokens, counts.cached_tokens) == (2, 40, request.cached_tokens)
    assert counts.cached_tokens > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", ["greedy", "temperature", "penalties"])
@pytest.mark.parametrize("rows", [80, 400])
def test_no_wish_of_service_changes_a_text(setting: str, rows: int, backend: str) -> None:
    dice = random.Random(rows)
    scheduler = SchedulerConfig(mixed_prompt_rows=2, max_rows=24, prefill_chunk=5, max_running=4)
    cache = CacheConfig(rows=rows, page_size=4)
    llm = make(by_id("suffix"), cache=cache, scheduler=scheduler, backend=backend)
    prompts = PROMPTS * 3
    wishes = [
        {
            **vars(SETTINGS[setting]),
            "priority": dice.randrange(3),
            "tenant": dice.choice([None, "a", "b"]),
            "cache_salt": dice.choice([None, "x"]),
            "algorithm": dice.choice([None, "ngram"]),
            "max_draft_tokens": dice.choice([None, 0, 2]),
            "prediction": [dice.randrange(VOCABULARY) for _ in range(dice.randrange(6))],
        }
        for _ in prompts
    ]
    assert [one.token_ids for one in llm.generate(prompts, wishes)] == plain(setting, backend) * 3
    assert_clean(llm)


def test_the_queue_may_change_between_any_two_lines_of_counting_it() -> None:
    made = engine(max_running=1)
    for number in range(4):
        ask(made, tenant=f"t{number}")
    arriving, before = iter(range(1000)), sys.gettrace()

    def arrive(frame: FrameType, what: str, _: Any) -> Any:
        if what == "line" and frame.f_code.co_filename == waiting.__file__:
            sys.settrace(None)
            ask(made, tenant=f"new{next(arriving)}")
            sys.settrace(arrive)
        return arrive

    sys.settrace(arrive)
    try:
        count = len(made.scheduler.waiting)
    finally:
        sys.settrace(before)
    assert 4 <= count <= len(made.scheduler.waiting)
    assert len(made.scheduler.waiting) == sum(1 for _ in made.scheduler.waiting) > 4


@pytest.mark.parametrize("long", [1, 3])
def test_a_short_prompt_does_not_wait_for_long_ones_beside_decoding_requests(long: int) -> None:
    made = engine(mixed_prompt_rows=8)
    decoding = ask(made, tokens=400)
    while not decoding.output_ids:
        made.step()
    for _ in range(long):
        ask(made, 300)
    made.step()
    short = ask(made, 3)
    passes = 0
    while not short.output_ids:
        made.step()
        passes += 1
    assert passes <= 5
