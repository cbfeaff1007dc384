"""The driver of an engine: event loops, interruptions, ends, and rounds run by hand."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from contract.test_lossless import assert_clean
from tiny import tiny_model, tiny_native
from unit.test_threads import TEXTS, THREADS, TIMEOUT, Job, facts, served, together

from outrider import LLM, CacheConfig, Chunk, RequestError, SamplingParams, SchedulerConfig
from outrider.engine.driver import Driver
from outrider.requests.stopping import FinishReason
from outrider.requests.turn import Progress

Processor = Callable[[Sequence[int], torch.Tensor], torch.Tensor]
LONG = {"max_tokens": 300, "ignore_eos": True}


def at(length: int, do: Callable[[], object]) -> Processor:
    """A processor that does something at every text of so many tokens."""

    def processor(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if len(history) == length:
            do()
        return logits

    return processor


def raising(error: type[BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def slowly(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    time.sleep(0.005)
    return logits


async def pieces(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in stream]


class AsyncJob(Job):
    """The same ways to use a model, from a coroutine."""

    async def arun(self, llm: LLM) -> Any:
        name = self.kind.__name__
        if name == "chat":
            done = await llm.achat([[{"role": "user", "content": text}] for text in self.prompts], self.wish)
            return [[facts(c) for c in each.choices] for each in done]
        if name == "stream":
            whole = {c.index: c.choice for c in await pieces(llm.astream(self.prompts[0], self.wish)) if c.choice}
            return [facts(whole[index]) for index in range(self.wish["n"])]
        if name == "leave":
            found: list[tuple[int, ...]] = []
            async for chunk in llm.astream(self.prompts[0], self.wish | {"n": 1, "speculate": False}):
                if len(found) == self.taken:
                    break
                found.append(chunk.token_ids)
            return found
        done = await llm.agenerate(self.prompts, self.wish)
        found_ = [[facts(c) for c in each.choices] for each in done]
        return (llm.encode(self.prompts[0]), found_) if name == "forget" else found_


@pytest.mark.parametrize("method", ["none", "suffix", "draft_model"])
def test_coroutines_and_threads_get_what_they_would_get_alone(method: str) -> None:
    dice = random.Random(7)
    jobs = [AsyncJob(dice) for _ in range(16)]
    beside = [[AsyncJob(dice) for _ in range(4)] for _ in range(THREADS - 3)]
    alone = {id(job): job.run(served()) for job in [*jobs, *(job for each in beside for job in each)]}
    llm = served(method, cache=CacheConfig(rows=512, page_size=8), scheduler=SchedulerConfig(max_running=4))

    async def everything() -> list[Any]:
        return await asyncio.gather(*(job.arun(llm) for job in jobs))

    def loop() -> None:
        for job, found in zip(jobs, asyncio.run(everything()), strict=True):
            assert found == alone[id(job)], job.kind.__name__

    def thread(mine: list[AsyncJob]) -> None:
        for job in mine:
            assert job.run(llm) == alone[id(job)], job.kind.__name__

    for future in together(loop, loop, *(lambda mine=mine: thread(mine) for mine in beside)):
        future.result()
    gc.collect()
    assert_clean(llm)


def test_an_event_loop_goes_on_while_rounds_run() -> None:
    """Every token waits for the loop to turn: were the loop blocked by a round, both would wait for ever."""
    llm, turned = served(), threading.Semaphore(0)

    def waits(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        assert turned.acquire(timeout=TIMEOUT)
        return logits

    async def tick() -> None:
        while True:
            turned.release()
            await asyncio.sleep(0.0005)

    async def both() -> list[int]:
        ticker = asyncio.create_task(tick())
        wish = {"max_tokens": 12, "ignore_eos": True, "processors": waits}
        streamed, done = await asyncio.gather(
            pieces(llm.astream("the hat", **wish)), llm.agenerate(["xyz", "ha"], **wish)
        )
        ticker.cancel()
        return [sum(len(chunk.token_ids) for chunk in streamed), *(len(each.token_ids) for each in done)]

    assert asyncio.run(asyncio.wait_for(both(), TIMEOUT)) == [12, 12, 12]
    assert_clean(llm)


def test_a_cancelled_coroutine_gives_back_its_pages() -> None:
    llm = served()

    async def cancelled(work: Coroutine[Any, Any, Any], begun: asyncio.Event) -> None:
        task = asyncio.create_task(work)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def run() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        starts = at(6, lambda: loop.call_soon_threadsafe(begun.set))
        wish = LONG | {"processors": (starts, slowly)}
        beside = asyncio.create_task(llm.agenerate("xyz", max_tokens=40, ignore_eos=True))
        await cancelled(llm.agenerate(["the hat"] * 3, **wish), begun)
        begun.clear()
        await cancelled(pieces(llm.astream("the hat", **wish)), begun)
        assert len((await beside)[0].token_ids) == 40

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))
    assert_clean(llm)


def test_leaving_an_asynchronous_loop_cancels_its_request() -> None:
    llm = served()
    wish = LONG | {"processors": slowly}

    async def run() -> None:
        async for _ in llm.astream("the hat", **wish):
            break
        async with llm.astream("the hat", **wish) as stream:
            await anext(stream)
        assert [chunk async for chunk in stream] == []
        stream = await llm.achat("the hat", stream=True, **wish)
        await anext(stream)
        await stream.aclose()
        llm.astream("the hat", **wish)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))
    gc.collect()
    assert_clean(llm)
    assert llm.engine.seconds.rounds < 250, "what nobody reads any more was decoded to its end"


def test_a_coroutine_is_told_why_its_prompt_is_refused() -> None:
    llm = served()

    async def run() -> None:
        with pytest.raises(RequestError, match="empty"):
            await llm.agenerate(["the hat", []])
        with pytest.raises(RequestError, match="shorten it"):
            await pieces(llm.astream([1] * 2000))

    asyncio.run(run())
    assert_clean(llm)


def test_a_loop_that_ended_takes_nothing_with_it() -> None:
    """A stream whose loop was closed before it was read to the end."""
    llm, kept = served(), []

    async def begin() -> None:
        kept.append(llm.astream("the hat", **LONG, processors=slowly))
        await anext(kept[0])
        kept.append(asyncio.create_task(anext(kept[0])))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    assert len(llm.generate("xyz", max_tokens=5, ignore_eos=True)[0].token_ids) == 5
    kept[1]._log_destroy_pending = False
    kept.clear()
    gc.collect()
    assert_clean(llm)


def test_closing_ends_what_coroutines_and_threads_wait_for() -> None:
    llm = served()
    wish = LONG | {"processors": slowly}

    async def waiting() -> list[FinishReason]:
        found = await asyncio.gather(llm.agenerate("the hat", **wish), pieces(llm.astream("the hat", **wish)))
        assert found[1][-1].choice is not None
        return [found[0][0].finish_reason, found[1][-1].choice.finish_reason]

    def close() -> None:
        while len(llm.driver._loop._calls) < 3:
            time.sleep(0.001)
        llm.close()

    coroutine, thread, closed = together(
        lambda: asyncio.run(waiting()), lambda: [llm.generate("xyz", **wish)[0].finish_reason], close
    )
    closed.result()
    assert set(coroutine.result() + thread.result()) == {FinishReason.CANCELLED}
    thread_of_its_own = llm.driver._thread
    assert thread_of_its_own is not None
    assert not thread_of_its_own.is_alive()
    with pytest.raises(RequestError, match="closed"):
        llm.astream("the hat")
    with pytest.raises(RequestError, match="closed"):
        asyncio.run(llm.agenerate("the hat"))


@pytest.mark.parametrize("ask", ["agenerate", "achat"])
def test_a_processor_that_asks_its_own_model_from_a_loop_is_told_so(ask: str) -> None:
    llm = served()
    wish = {"max_tokens": 5, "processors": at(4, lambda: asyncio.run(getattr(llm, ask)("xyz")))}
    failed = llm.generate("the hat", **wish)[0]
    assert "called the LLM that runs it" in (failed.choices[0].error or "")
    assert_clean(llm)


def loaded() -> tuple[LLM, weakref.ref[Any]]:
    """A model that nobody else has."""
    target = tiny_native.__wrapped__(3)
    return LLM.from_model(target), weakref.ref(target)


@pytest.mark.parametrize("use", ["generate", "stream", "agenerate", "nothing"])
def test_a_model_that_nobody_refers_to_is_freed_at_once_and_its_thread_ends(use: str) -> None:
    llm, gone = loaded()
    if use == "agenerate":
        asyncio.run(llm.agenerate([[1, 2, 3]], max_tokens=3))
    elif use != "nothing":
        list(getattr(llm, use)([1, 2, 3], max_tokens=3))
    thread = llm.driver._thread
    del llm
    assert gone() is None, "the sleeping thread holds the model"
    if thread is not None:
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def test_a_model_that_is_dropped_while_it_decodes_is_freed_after_the_round() -> None:
    llm, gone = loaded()
    stream = llm.stream([1, 2, 3], **LONG, processors=slowly)
    next(stream)
    thread = llm.driver._thread
    del llm
    next(stream)
    del stream
    assert thread is not None
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert gone() is None


def test_the_interpreter_ends_while_a_stream_is_open() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from tiny import tiny_native\n"
        "from outrider import LLM\n"
        "llm = LLM.from_model(tiny_native(0))\n"
        "stream = llm.stream([1, 2, 3], max_tokens=400, ignore_eos=True)\n"
        "other = LLM.from_model(tiny_native(0)); other.generate([[1, 2]], max_tokens=2)\n"
        "print(next(stream).index)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_an_interruption_from_the_keyboard_never_meets_a_round() -> None:
    llm = served()
    want = llm.generate("the hat", max_tokens=60, ignore_eos=True)[0].token_ids
    beside = llm.stream("the hat", max_tokens=60, ignore_eos=True, processors=slowly)
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    strikes = at(12, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        llm.generate("xyz", **LONG, processors=(strikes, slowly))
    assert tuple(token for chunk in beside for token in chunk.token_ids) == want
    assert_clean(llm)


def test_what_a_round_raises_reaches_all_who_wait_and_nobody_else() -> None:
    llm, go = served(), threading.Event()
    unread = llm.stream("the hat", max_tokens=40, ignore_eos=True, processors=slowly)

    def fail() -> None:
        assert go.wait(TIMEOUT)
        if not failed:
            failed.append(True)
            raise KeyboardInterrupt

    failed: list[bool] = []
    waiting = threading.Barrier(2)

    def wait() -> Any:
        waiting.wait(TIMEOUT)
        return llm.generate("xyz", max_tokens=30, ignore_eos=True)

    def blame() -> Any:
        waiting.wait(TIMEOUT)
        threading.Timer(0.5, go.set).start()
        return llm.generate("ha", max_tokens=30, ignore_eos=True, processors=at(6, fail))

    found = [type(future.exception()) for future in together(wait, blame)]
    assert found == [KeyboardInterrupt] * 2
    want = served().generate("the hat", max_tokens=40, ignore_eos=True)[0].token_ids
    assert tuple(token for chunk in unread for token in chunk.token_ids) == want
    assert_clean(llm)


def test_a_round_that_raises_is_not_tried_again_until_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, rounds, stuck = served(), [], threading.Event()
    step = llm.engine.step

    def failing() -> list[Progress]:
        rounds.append(1)
        if len(rounds) > 3:
            stuck.set()
            raise MemoryError("no room")
        return step()

    monkeypatch.setattr(llm.engine, "step", failing)
    stream = llm.stream("the hat", max_tokens=30, ignore_eos=True)
    assert stuck.wait(TIMEOUT)
    time.sleep(0.05)
    assert len(rounds) <= 5, "rounds are tried though nobody waits"
    found = list[int]()
    for _ in range(3):
        with pytest.raises(MemoryError, match="no room"):
            for chunk in stream:
                found += chunk.token_ids
    assert len(rounds) < 12
    monkeypatch.undo()
    with suppress(MemoryError):  # what the last round raised may not have been told yet
        for chunk in stream:
            found += chunk.token_ids
    found += [token for chunk in stream for token in chunk.token_ids]
    assert tuple(found) == served().generate("the hat", max_tokens=30, ignore_eos=True)[0].token_ids
    assert_clean(llm)


def test_a_driver_without_a_thread_runs_a_round_a_step() -> None:
    llm, prompts = served(), [[5, 6, 7], [8, 9]]
    wishes = [(prompt, SamplingParams(max_tokens=6, ignore_eos=True)) for prompt in prompts]
    with Driver(llm.engine, threaded=False) as driver:
        call = driver.submit(wishes)
        rounds = 0
        while call.open:
            assert sum(len(item.tokens) for item in driver.step()) == 2
            rounds += 1
        assert rounds == 6
        assert [one.token_ids for one in call.completions()] == [
            served().generate([prompt], max_tokens=6, ignore_eos=True)[0].token_ids for prompt in prompts
        ]
        left = driver.submit(wishes)
        driver.step()
        driver.cancel(left)
        assert llm.engine.idle
        assert driver.wait(left) is None
        assert driver._thread is None
    with pytest.raises(RequestError, match="closed"):
        driver.submit(wishes)
    with pytest.raises(RequestError, match="a thread of its own"):
        llm.driver.step()
    assert_clean(llm)


def test_a_step_raises_what_its_round_does() -> None:
    llm = served()
    with Driver(llm.engine, threaded=False) as driver:
        once = [KeyboardInterrupt]
        stops = at(5, lambda: once and raising(once.pop())())
        call = driver.submit([([1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True, processors=(stops,)))])
        with pytest.raises(KeyboardInterrupt):
            while driver.wait(call) is not None:
                pass
        while driver.wait(call) is not None:
            pass
        plain = served().generate([[1, 2, 3]], max_tokens=6, ignore_eos=True)[0]
        assert call.completions()[0].token_ids == plain.token_ids
    assert_clean(llm)


@pytest.mark.parametrize(("model", "expected"), [(tiny_model, [2, 2, 1, 1, 3, 3]), (tiny_native, [1] * 6)])
def test_rounds_use_as_many_torch_threads_as_the_one_who_made_the_model(model: Any, expected: list[int]) -> None:
    """One where the kernels have threads of their own."""
    llm, seen = LLM.from_model(model(0)), list[int]()
    before = torch.get_num_threads()
    work = llm.driver.between_rounds
    try:
        for count in (2, 1, 3):
            torch.set_num_threads(count)
            seen.append(work(lambda engine: 0) or work(lambda engine: torch.get_num_threads()))
            elsewhere = together(lambda: (torch.set_num_threads(5), work(lambda engine: torch.get_num_threads()))[1])
            seen.append(elsewhere[0].result())
    finally:
        torch.set_num_threads(before)
    assert seen == expected


def test_a_thread_that_meets_torch_during_a_round_gets_what_it_would_get_without() -> None:
    before, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:

        def meets(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            new = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            new.start()
            new.join()
            return logits

        LLM.from_model(tiny_native(0)).generate([5, 6], max_tokens=3, ignore_eos=True, processors=(meets,))
    finally:
        torch.set_num_threads(before)
    assert seen == [3] * 3


def test_a_round_that_raises_stop_iteration_does_not_end_a_stream_as_if_it_were_whole() -> None:
    llm = served()
    stream = llm.stream([5, 6, 7], **LONG, processors=(slowly,))
    next(stream)

    def stops(*arguments: Any, **options: Any) -> Any:
        raise StopIteration

    llm.driver.between_rounds(lambda engine: setattr(engine, "step", stops))
    try:
        with pytest.raises(RuntimeError, match="the round raised StopIteration"):
            list(stream)
    finally:
        stream.close()


def test_the_same_target_under_another_drafter_keeps_the_settings() -> None:
    cache = CacheConfig(rows=320, page_size=8, prefix_cache=True)
    llm = served(cache=cache, scheduler={"max_rows": 24, "max_running": 3, "prefill_chunk": 8})
    other = llm.speculating("ngram").speculating("suffix")
    assert (other.engine.pool.rows, other.engine.pool.page_size) == (320, 8)
    assert other.engine.scheduler._config == llm.engine.scheduler._config
    assert other.engine.cache.shares
    for text in TEXTS:
        wish = {"max_tokens": 12, "ignore_eos": True}
        assert other.generate(text, **wish)[0].token_ids == llm.generate(text, **wish)[0].token_ids


def test_two_drivers_of_one_engine_take_turns() -> None:
    """A second one is refused while calls of the first are open, and harms none of them."""
    llm, prompts = served(), [[5, 6, 7], [8, 9]]
    expected = llm.generate(prompts, max_tokens=8, ignore_eos=True)
    by_hand = Driver(llm.engine, threaded=False)
    wish = (prompts[1], SamplingParams(max_tokens=8, ignore_eos=True))
    with llm.stream(prompts[0], max_tokens=400, processors=(slowly,)) as stream:
        next(stream)
        with pytest.raises(RequestError, match="another driver"):
            by_hand.complete([wish])
        assert next(stream).token_ids
    llm.driver.between_rounds(lambda engine: engine)
    assert [one.token_ids for one in by_hand.complete([wish])] == [expected[1].token_ids]
    call = by_hand.submit([wish])
    by_hand.step()
    with pytest.raises(RequestError, match="another driver"):
        llm.generate(prompts[0], max_tokens=8, ignore_eos=True)
    by_hand.cancel(call)
    assert llm.generate(prompts[0], max_tokens=8, ignore_eos=True)[0].token_ids == expected[0].token_ids
