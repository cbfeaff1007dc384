"""A drafter that hangs is interrupted, nothing is raised anywhere else, and the texts stay."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from oracles import Scripted, random_trees
from tiny import VOCABULARY, tiny_model

from outrider import LLM, SamplingParams
from outrider.drafters.base import DraftSequence
from outrider.engine.watchdog import DraftTimeoutError, Watchdog
from outrider.tree import TokenTree

BOUND = 0.05
PROMPTS = [[1, 2, 3], [4, 5], [6]]
WISH = SamplingParams(max_tokens=12, ignore_eos=True)


def hang() -> None:
    while True:
        time.sleep(0.001)


def test_a_call_that_hangs_is_interrupted_and_the_next_one_is_not() -> None:
    dog = Watchdog(BOUND)
    for _ in range(3):
        with pytest.raises(DraftTimeoutError, match=r"did not return within 0.05 s"):
            dog.call(hang)
        assert dog.call(lambda: 7) == 7
        time.sleep(2 * BOUND)  # nothing is raised here


def test_what_a_call_raises_comes_out() -> None:
    dog = Watchdog(BOUND)
    with pytest.raises(ZeroDivisionError):
        dog.call(lambda: 1 // 0)
    assert dog.call(divmod, 7, 2) == (3, 1)


def test_a_call_that_swallows_the_interruption_is_interrupted_again() -> None:
    met = []

    def stubborn() -> None:
        try:
            hang()
        except BaseException:  # noqa: BLE001 - what a bad drafter may do
            met.append(1)
        hang()

    with pytest.raises(DraftTimeoutError):
        Watchdog(BOUND).call(stubborn)
    assert met == [1]


def test_an_interruption_that_comes_at_the_end_of_a_call_stays_inside_it() -> None:
    """The watcher decides at every point of a call's end: the call fails or it does not, and nothing comes later."""
    dog, ended = Watchdog(3600.0), []
    stop = threading.Event()

    def provoke() -> None:
        while not stop.is_set():
            dog.look(0.0)
            dog.look(1e9)

    def count(most: int) -> None:
        for _ in range(most):
            pass

    thread, before = threading.Thread(target=provoke), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the threads take turns between any two instructions
    thread.start()
    try:
        until = time.monotonic() + 10.0
        while ended.count("late") < 10 and time.monotonic() < until:
            try:
                dog.call(count, len(ended) % 200)
                ended.append("in time")
            except DraftTimeoutError:
                ended.append("late")
            count(20)  # would meet an interruption that came outside
    finally:
        sys.setswitchinterval(before)
        stop.set()
        thread.join()
    assert set(ended) == {"late", "in time"}
    assert dog.call(lambda: 1) == 1


def test_the_watcher_keeps_no_engine_alive() -> None:
    dog = Watchdog(BOUND)
    dog.call(int)
    reference = weakref.ref(dog)
    del dog
    gc.collect()
    time.sleep(BOUND)
    assert reference() is None


def hanging(call: str, only: Callable[[DraftSequence], bool] = lambda one: True) -> tuple[LLM, list[str]]:
    met: list[str] = []
    trees = random_trees(VOCABULARY, 3)

    def script(sequence: DraftSequence) -> TokenTree:
        if call == "propose" and only(sequence):
            met.append(call)
            hang()
        return trees(sequence)

    llm = LLM.from_model(tiny_model(), speculation=Scripted(script), scheduler={"draft_timeout": BOUND})
    if call != "propose":
        drafter = llm.engine.drafting.drafters[0]._drafter

        def hangs(*arguments: object) -> None:
            met.append(call)
            hang()

        setattr(drafter, call, hangs)
    return llm, met


@pytest.mark.parametrize("call", ["adopt", "propose", "observe", "close"])
def test_a_drafter_that_hangs_anywhere_is_switched_off_and_counted(call: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = [one.token_ids for one in LLM.from_model(tiny_model(), speculation=None).generate(PROMPTS, WISH)]
    llm, met = hanging(call)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            assert [one.token_ids for one in llm.generate(PROMPTS, WISH)] == expected
    assert 0 < len(met) <= 4, "it was asked again and again"
    assert "did not return within 0.05 s" in caplog.text
    assert "is not called again" in caplog.text
    if call != "close":
        assert set(llm.engine.drafting.switched_off) == {("scripted", "timeout")}
        assert sum(llm.engine.drafting.switched_off.values()) >= len(PROMPTS)
    llm.engine.pool.check()


def test_a_drafter_that_hangs_once_serves_the_requests_to_come() -> None:
    waits = iter([True])
    llm, met = hanging("propose", lambda one: next(waits, False))
    llm.generate(PROMPTS, WISH)
    assert met == ["propose"]
    (done,) = llm.generate(PROMPTS[:1], WISH)
    assert sum(done.speculation.drafted)


@pytest.mark.parametrize(("fault", "reason"), [("raises", "raised"), ("wrong root", "invalid")])
def test_other_faults_are_counted_by_their_reason(fault: str, reason: str) -> None:
    def script(sequence: DraftSequence) -> TokenTree:
        if fault == "raises":
            raise RuntimeError("no idea")
        return TokenTree(((sequence.tokens[-1] + 1) % VOCABULARY,), (-1,), (1.0,), ())

    llm = LLM.from_model(tiny_model(), speculation=Scripted(script))
    llm.generate(PROMPTS, WISH)
    assert llm.engine.drafting.switched_off == {("scripted", reason): len(PROMPTS)}
