"""One LLM in several threads: each caller gets, to the bit, what it would get alone."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from contract.test_lossless import assert_clean
from tiny import tiny_model, tiny_native

from outrider import LLM, CacheConfig, Choice, RequestError, SchedulerConfig
from outrider.engine.engine import Engine
from outrider.engine.stream import Stream
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.stopping import FinishReason
from outrider.requests.turn import Progress

TIMEOUT = 120.0
THREADS, JOBS = 6, 10
TEXTS = ["the hat", "ha ha ha ha", "is the hat a hat", "xyz", "the the the the", "0 1 2 0 1 2 0 1"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {},
    "suffix": {},
    "draft_model": {"options": {"model": "good"}},
}


def chatty() -> Tokenizer:
    """The byte tokenizer with a chat template."""
    plain = byte_tokenizer()
    return Tokenizer(plain.backend, name="chatty", eos_ids=plain.eos_ids, chat_template=TEMPLATE)


def served(method: str = "none", **options: Any) -> LLM:
    """A model whose rows are the same bits in any company."""
    plan = {"method": method, **METHODS[method]}
    draft_models = {"good": tiny_native(0, SIZE)}
    return LLM.from_model(tiny_native(0, SIZE), chatty(), speculation=plan, draft_models=draft_models, **options)


def shuffled(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor that lets other threads in at odd moments, and changes what is likely."""
    time.sleep(0.0002 * (len(history) % 3))
    logits[history[-1]] -= 2.0
    return logits


def broken(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor that fails after a while."""
    if len(history) > 14:
        raise KeyError("no such state")
    return logits


def facts(choice: Choice) -> tuple[Any, ...]:
    return choice.index, choice.text, choice.token_ids, choice.finish_reason, choice.seed, choice.logprobs, choice.error


class Job:
    """One way to use a model, with what it gives alone."""

    def __init__(self, dice: random.Random) -> None:
        self.kind = dice.choice([self.generate, self.generate, self.stream, self.leave, self.chat, self.forget])
        self.prompts = [dice.choice(TEXTS) * dice.randint(1, 3) for _ in range(dice.randint(1, 3))]
        self.taken = dice.randint(0, 4)
        self.wish: dict[str, Any] = {
            "max_tokens": dice.randint(1, 16),
            "temperature": dice.choice([0.0, 1.0]),
            "seed": dice.randrange(1000),
            "n": dice.choice([1, 1, 2]),
            "logprobs": dice.choice([None, 1]),
            "processors": dice.choice([(), (), shuffled, broken]),
        }
        self.wish["speculate"] = dice.random() < 0.9

    def run(self, llm: LLM) -> Any:
        return self.kind(llm)

    def generate(self, llm: LLM) -> Any:
        return [[facts(c) for c in done.choices] for done in llm.generate(self.prompts, self.wish)]

    def chat(self, llm: LLM) -> Any:
        done = llm.chat([[{"role": "user", "content": text}] for text in self.prompts], self.wish)
        return [[facts(c) for c in each.choices] for each in done]

    def stream(self, llm: LLM) -> Any:
        text: dict[int, str] = {}
        ids: dict[int, list[int]] = {}
        whole = {}
        for chunk in llm.stream(self.prompts[0], self.wish):
            text[chunk.index] = text.get(chunk.index, "") + chunk.text
            ids.setdefault(chunk.index, []).extend(chunk.token_ids)
            if chunk.choice:
                whole[chunk.index] = chunk.choice
        for index, choice in whole.items():
            assert (text[index], tuple(ids[index])) == (choice.text, choice.token_ids)
        return [facts(whole[index]) for index in range(self.wish["n"])]

    def leave(self, llm: LLM) -> Any:
        """Read a few pieces and close."""
        with llm.stream(self.prompts[0], self.wish | {"n": 1, "speculate": False}) as pieces:
            return [chunk.token_ids for _, chunk in zip(range(self.taken), pieces, strict=False)]

    def forget(self, llm: LLM) -> Any:
        """Open a stream, never read it, and ask something else."""
        unread = llm.stream(self.prompts[-1], self.wish)
        found = llm.encode(self.prompts[0]), self.generate(llm)
        del unread
        return found


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads change places thousands of times a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


def together(*tasks: Callable[[], Any]) -> list[Future[Any]]:
    """Run each in a thread of its own, all from the same moment."""
    barrier = threading.Barrier(len(tasks))

    def begin(task: Callable[[], Any]) -> Any:
        barrier.wait()
        return task()

    pool = ThreadPoolExecutor(len(tasks))
    futures = [pool.submit(begin, task) for task in tasks]
    try:
        for future in futures:
            future.exception(TIMEOUT)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return futures


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_everybody_gets_what_they_would_get_alone(method: str, seed: int) -> None:
    dice = random.Random(seed)
    jobs = [[Job(dice) for _ in range(JOBS)] for _ in range(THREADS)]
    alone = [[job.run(served()) for job in jobs_of_one] for jobs_of_one in jobs]
    rows = dice.choice([256, 1024])
    llm = served(method, cache=CacheConfig(rows=rows, page_size=8), scheduler=SchedulerConfig(max_running=4))

    def work(mine: list[Job]) -> list[Any]:
        return [job.run(llm) for job in mine]

    found = [future.result() for future in together(*(lambda mine=mine: work(mine) for mine in jobs))]
    for thread, (mine, theirs) in enumerate(zip(found, alone, strict=True)):
        for place, (got, wanted) in enumerate(zip(mine, theirs, strict=True)):
            assert got == wanted, f"job {place} of thread {thread}: {jobs[thread][place].kind.__name__}"
    gc.collect()
    llm.generate("x", max_tokens=1)  # what was forgotten is ended by whoever comes next
    assert_clean(llm)


def test_callers_share_rounds() -> None:
    llm = served()
    prompts = [f"{text} {i}" for i, text in enumerate(TEXTS)]
    apart = sum(served().generate(prompt, max_tokens=32, ignore_eos=True)[0].seconds.rounds for prompt in prompts)
    ask = [lambda p=p: llm.generate(p, max_tokens=32, ignore_eos=True) for p in prompts]
    for future in together(*ask):
        future.result()
    assert llm.engine.seconds.rounds < apart / 2


def test_a_waiting_caller_takes_over_when_the_one_that_runs_rounds_leaves() -> None:
    llm = served()
    short = llm.stream("xyz", max_tokens=2, ignore_eos=True)
    next(short)
    (long,) = together(lambda: llm.generate("the hat", max_tokens=40, ignore_eos=True))
    assert len(long.result()[0].token_ids) == 40
    assert [len(chunk.token_ids) for chunk in short] == [1]


def test_a_stream_that_nobody_reads_holds_up_nobody() -> None:
    llm = served(scheduler=SchedulerConfig(max_running=1))
    unread = llm.stream("the hat", max_tokens=20, ignore_eos=True)
    other = llm.generate("xyz", max_tokens=5, ignore_eos=True)[0]
    assert len(other.token_ids) == 5
    assert sum(len(chunk.token_ids) for chunk in unread) == 20
    assert_clean(llm)


def test_a_stream_that_is_dropped_gives_back_its_pages_at_once() -> None:
    llm = served()
    pieces = llm.stream("the hat", max_tokens=20, ignore_eos=True)
    next(pieces)
    del pieces
    gc.collect()
    assert_clean(llm)


def test_a_stream_closed_from_another_thread_ends_where_it_is_read() -> None:
    llm = served()
    reading = threading.Event()

    def slow(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        reading.set()
        time.sleep(0.01)
        return logits

    pieces = llm.stream("the hat", max_tokens=200, ignore_eos=True, processors=slow)

    def close() -> None:
        assert reading.wait(TIMEOUT)
        pieces.close()

    read, closed = together(lambda: sum(len(chunk.token_ids) for chunk in pieces), close)
    closed.result()
    assert read.result() < 200
    assert list(pieces) == []
    assert_clean(llm)


def test_two_threads_may_read_one_stream() -> None:
    llm = served()
    pieces = llm.stream("the hat", max_tokens=60, ignore_eos=True)
    counts = [future.result() for future in together(*[lambda: sum(len(c.token_ids) for c in pieces)] * 2)]
    assert sum(counts) == 60


def test_a_collection_inside_a_round_may_drop_a_stream() -> None:
    llm = served()
    held: list[Stream] = [llm.stream("xyz", max_tokens=50, ignore_eos=True)]

    def collecting(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if held and len(history) > 10:
            held.clear()
            gc.collect()
        return logits

    done = llm.generate("the hat", max_tokens=20, ignore_eos=True, processors=collecting)[0]
    assert len(done.token_ids) == 20
    assert_clean(llm)


@pytest.mark.parametrize("ask", [LLM.generate, LLM.chat, lambda llm, text: next(llm.stream(text))])
def test_a_processor_that_asks_its_own_model_is_told_so(ask: Callable[..., Any]) -> None:
    llm = served()

    def asking(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        ask(llm, "xyz")
        return logits

    fine, failed = llm.generate(["the hat"] * 2, [{"max_tokens": 5}, {"max_tokens": 5, "processors": asking}])
    assert fine.text == served().generate("the hat", max_tokens=5)[0].text
    assert "called the LLM that runs it" in (failed.choices[0].error or "")
    assert_clean(llm)


def test_a_processor_may_ask_another_model_of_the_same_target() -> None:
    llm = served()
    other = llm.speculating("ngram")

    def asking(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        other.generate("xyz", max_tokens=1)
        return logits

    done = llm.generate("the hat", max_tokens=5, processors=asking)[0]
    assert done.text == served().generate("the hat", max_tokens=5)[0].text


def test_engines_that_share_a_target_with_hooks_keep_apart() -> None:
    """Hidden rows are caught by hooks on the module, which every pass over it meets."""
    from contract.cases import by_id, make

    target = tiny_model(0)
    config = by_id("eagle")
    models = [make(config, target=target) for _ in range(4)]
    want = make(config, target=target).generate([[5, 6, 7, 8]], max_tokens=40, ignore_eos=True)[0]
    ask = [lambda m=m: m.generate([[5, 6, 7, 8]], max_tokens=40, ignore_eos=True)[0] for m in models]
    for future in together(*ask):
        found = future.result()
        assert found.token_ids == want.token_ids
        assert found.speculation == want.speculation, "a drafter read rows of another engine's pass"


def test_an_exception_that_escapes_a_round_is_its_runners_alone() -> None:
    """What the round did to others is delivered by a later one, as the engine promises."""
    llm = served()
    step, kept = Engine.step, list[Progress]()
    fail = iter([False, False, True, False, True])

    def failing(engine: Engine) -> list[Progress]:
        kept.extend(step(engine))
        if next(fail, False):
            raise KeyboardInterrupt
        found = list(kept)
        kept.clear()
        return found

    want = served().generate("the hat", max_tokens=20, ignore_eos=True)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "step", failing)
        pieces = llm.stream("the hat", max_tokens=20, ignore_eos=True)
        ids, interrupts = list[int](), 0
        while interrupts < 3:
            try:
                for chunk in pieces:
                    ids += chunk.token_ids
                break
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 2
    assert tuple(ids) == want.token_ids
    assert_clean(llm)


def test_an_interrupted_caller_leaves_the_others_alone() -> None:
    """A round that raises ends the call that ran it; a stream beside it goes on, and nothing stays behind."""
    llm = served()
    beside = llm.stream("the hat", max_tokens=20, ignore_eos=True)
    ids = list(next(beside).token_ids)

    def interrupting(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if len(history) > 6:
            raise KeyboardInterrupt
        return logits

    with pytest.raises(KeyboardInterrupt):
        llm.generate("xyz", max_tokens=9, ignore_eos=True, processors=interrupting)
    want = served().generate("the hat", max_tokens=20, ignore_eos=True)[0]
    for chunk in beside:
        ids += chunk.token_ids
    assert tuple(ids) == want.token_ids
    assert_clean(llm)


def test_a_stream_goes_on_after_its_processor_broke_a_round_off() -> None:
    llm = LLM.from_model(tiny_model(), speculation="ngram")
    wish = {"max_tokens": 12, "ignore_eos": True}
    want = llm.generate([[5, 6, 7]], **wish)[0].token_ids
    due = [3]

    def interrupted(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        due[0] -= 1
        if due[0] == 0:
            raise KeyboardInterrupt
        return logits

    found: list[int] = []
    stream = llm.stream([5, 6, 7], processors=interrupted, **wish)
    with pytest.raises(KeyboardInterrupt):
        for chunk in stream:
            found += chunk.token_ids
    assert len(found) < 12
    found += [token for chunk in stream for token in chunk.token_ids]
    assert tuple(found) == want


def test_closing_ends_what_is_open_and_refuses_what_comes() -> None:
    llm = served()
    started = threading.Event()

    def slow(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        started.set()
        time.sleep(0.005)
        return logits

    def close() -> None:
        assert started.wait(TIMEOUT)
        llm.close()

    unread = llm.stream("the hat", max_tokens=300, ignore_eos=True)
    done, closed = together(lambda: llm.generate("xyz", max_tokens=300, ignore_eos=True, processors=slow), close)
    closed.result()
    assert done.result()[0].finish_reason is FinishReason.CANCELLED
    *_, last = unread
    assert last.choice is not None
    assert last.choice.finish_reason is FinishReason.CANCELLED
    llm.close()
    unread.close()
    for late in (llm.generate, llm.stream, llm.chat, llm.speculating):
        with pytest.raises(RequestError, match="closed"):
            late("ngram")
    with pytest.raises(RequestError, match="closed"):
        llm.clear_prefix_cache()
    assert "closed" in repr(llm)


def test_a_context_manager_closes() -> None:
    with served() as llm:
        llm.generate("the hat", max_tokens=2)
    with pytest.raises(RequestError, match="closed"):
        llm.generate("the hat")


def test_nothing_is_queued_of_a_call_that_is_refused() -> None:
    llm = served()
    with pytest.raises(RequestError, match="empty"):
        llm.generate(["the hat", []], max_tokens=5)
    assert_clean(llm)
