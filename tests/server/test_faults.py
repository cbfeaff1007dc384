"""What fails inside: drafters, numbers, rounds, room.  The client is told so, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from oracles import Scripted
from raw_http import error_of, soon
from serving import Served, serving, tiny_llm
from tiny_folder import make_folder

from outrider import LLM, Speculation
from outrider.drafters.base import DraftSequence
from outrider.tree import TokenTree

WISH = {"prompt": "the sea", "max_tokens": 24, "temperature": 0}
PATHS = {
    "/v1/completions": WISH,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 24, "temperature": 0},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with tiny_llm(tmp_path_factory.mktemp("plain"), speculation="none") as llm, serving(llm) as served:
        yield served


def data(answer: httpx.Response) -> list[str]:
    """What the events of a stream hold."""
    return [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]


def told_twice(served: Served, path: str = "/v1/completions", **more: Any) -> list[dict[str, Any]]:
    """The errors that a request gets whole and as a stream."""
    with served.client() as client:
        whole = client.post(path, json=PATHS[path] | more)
        assert whole.status_code == 500
        assert whole.headers["x-request-id"]
        assert whole.headers["x-content-type-options"] == "nosniff"
        streamed = client.post(path, json=PATHS[path] | more | {"stream": True})
        events = data(streamed)
        assert events[-1] == "[DONE]"
        return [error_of(whole.text), error_of(events[-2])]


def raises(sequence: DraftSequence) -> TokenTree:
    raise ZeroDivisionError(f"a drafter's own affair in {__file__}")


def names_no_token(sequence: DraftSequence) -> TokenTree:
    return sequence.builder().chain([10**9]).build()


def is_no_tree(sequence: DraftSequence) -> TokenTree:
    return "tree"  # type: ignore[return-value]


@pytest.mark.parametrize("script", [raises, names_no_token, is_no_tree])
def test_a_faulty_drafter_costs_the_speed_alone(
    plain: Served, tmp_path: Path, script: Callable[[DraftSequence], TokenTree]
) -> None:
    with tiny_llm(tmp_path, speculation=Speculation(Scripted(script))) as llm, serving(llm) as served:
        for path, wish in PATHS.items():
            for more in ({}, {"temperature": 1, "seed": 5}):
                with served.client() as client, plain.client() as other:
                    answer, expected = (one.post(path, json=wish | more) for one in (client, other))
                    assert answer.status_code == 200
                    assert text_of(answer) == text_of(expected)
                    assert answer.json()["usage"]["speculation"]["accepted"] == 0
                    streamed = data(client.post(path, json=wish | more | {"stream": True}))
                assert streamed[-1] == "[DONE]"
                assert "".join(map(piece_of, streamed[:-1])) == text_of(expected)
        assert served.idle()


def text_of(answer: httpx.Response) -> str:
    (choice,) = answer.json()["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def piece_of(event: str) -> str:
    (choice,) = json.loads(event)["choices"]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


@pytest.mark.parametrize("path", PATHS)
def test_numbers_that_are_none(tmp_path: Path, path: str) -> None:
    folder = make_folder(tmp_path, spoil="model.norm.weight")
    with LLM(folder, context_length=512, backend="hf") as llm, serving(llm) as served:
        for error in told_twice(served, path):
            assert error["type"] == "server_error"
            assert "NaN" in error["message"] or "not numbers" in error["message"] or "finite" in error["message"]
        with served.client() as client:
            assert client.get("/health").status_code == 200
        assert served.idle()


class Trap:
    """Makes a stage of the round raise as often as it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: type[BaseException]) -> None:
        self.left, stage = 0, getattr(owner, name)

        def trapped(*args: Any, **more: Any) -> Any:
            if self.left:
                self.left -= 1
                raise error(f"secret of {__file__}")
            return stage(*args, **more)

        monkeypatch.setattr(owner, name, trapped)


@pytest.mark.parametrize(
    "error", [ValueError, MemoryError, KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit]
)
@pytest.mark.parametrize("stage", ["forward", "schedule", "accept", "commit"])
def test_a_round_that_raises(
    plain: Served, monkeypatch: pytest.MonkeyPatch, stage: str, error: type[BaseException]
) -> None:
    engine = plain.llm.engine
    owner = {"forward": engine.target, "schedule": engine.scheduler, "accept": engine.verifier}.get(stage, engine.cache)
    trap = Trap(monkeypatch, owner, stage, error)
    with plain.client() as client:
        expected = text_of(client.post("/v1/completions", json=WISH))
        for streamed in (False, True):
            trap.left = 1
            answer = client.post("/v1/completions", json=WISH | {"stream": streamed})
            assert trap.left == 0
            if streamed:
                *_, told, last = data(answer)
                assert last == "[DONE]"
                body = told
            else:
                assert answer.status_code == 500
                body = answer.text
            assert error_of(body)["type"] == "server_error"
            assert "secret" not in answer.text
        assert text_of(client.post("/v1/completions", json=WISH)) == expected
    assert plain.idle()


def test_others_of_a_broken_round_are_told_too(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whose request broke it; whoever asks again is served."""
    trap = Trap(monkeypatch, plain.llm.engine.target, "forward", ValueError)
    with plain.client() as client, ThreadPoolExecutor(8) as pool:
        wishes = [WISH | {"prompt": f"number {n}", "max_tokens": 300, "ignore_eos": True} for n in range(8)]
        told = [pool.submit(client.post, "/v1/completions", json=wish) for wish in wishes]
        assert soon(lambda: plain.desk.open == 8)
        trap.left = 1
        assert {one.result().status_code for one in told} <= {200, 500}
        assert client.post("/v1/completions", json=WISH).status_code == 200
    assert plain.idle()


def test_without_room_all_requests_wait_their_turn(tmp_path: Path, plain: Served) -> None:
    wishes = [WISH | {"prompt": f"number {number} " * 3, "max_tokens": 40, "ignore_eos": True} for number in range(24)]
    with tiny_llm(tmp_path, cache={"rows": 256}) as llm, serving(llm) as served:
        with served.client() as client, plain.client() as other, ThreadPoolExecutor(24) as pool:
            told = list(pool.map(lambda wish: client.post("/v1/completions", json=wish), wishes))
            assert [answer.status_code for answer in told] == [200] * 24
            expected = list(pool.map(lambda wish: other.post("/v1/completions", json=wish), wishes))
        assert list(map(text_of, told)) == list(map(text_of, expected))
        assert llm.driver.between_rounds(lambda engine: engine.scheduler.counts.preemptions) > 0
        assert served.idle()


def test_a_full_queue(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, scheduler={"max_running": 1}) as llm, serving(llm, max_waiting=1) as served:
        with served.client() as client, ThreadPoolExecutor(2) as pool:
            long = WISH | {"max_tokens": 400, "ignore_eos": True}
            first = [pool.submit(client.post, "/v1/completions", json=long) for _ in range(2)]
            assert soon(lambda: served.desk.open == 2)
            for streamed in (False, True):
                told = client.post("/v1/completions", json=WISH | {"stream": streamed})
                assert told.status_code == 429
                assert error_of(told.text)["type"] == "rate_limit_error"
                assert int(told.headers["retry-after"]) >= 1
            told = client.post("/v1/completions", json=WISH | {"n": 3})
            assert told.status_code == 400, "waiting does not help a request that is too large for the queue"
            assert [one.result().status_code for one in first] == [200, 200]
        assert served.idle()


def test_prompts_past_the_context(plain: Served) -> None:
    long = "the sea " * 600
    with plain.client() as client:
        for path, wish, param in (
            ("/v1/completions", WISH | {"prompt": long}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}, "messages"),
        ):
            for streamed in (False, True):
                told = client.post(path, json=wish | {"stream": streamed})
                assert told.status_code == 400
                error = error_of(told.text)
                assert error["code"] == "context_length_exceeded"
                assert error["param"] == param
                assert "512" in error["message"]


def test_a_request_past_its_time(plain: Served) -> None:
    long = WISH | {"max_tokens": 480, "ignore_eos": True, "timeout": 0.05, "n": 8}
    with plain.client() as client:
        told = client.post("/v1/completions", json=long)
        assert told.status_code == 408
        assert error_of(told.text)["code"] == "timeout"
        *_, error, last = data(client.post("/v1/completions", json=long | {"stream": True}))
        assert last == "[DONE]"
        assert error_of(error)["code"] == "timeout"
    assert soon(plain.idle)


def test_two_hundred_at_once(plain: Served) -> None:
    with plain.client(limits=httpx.Limits(max_connections=200)) as client, ThreadPoolExecutor(200) as pool:
        wishes = [WISH | {"max_tokens": 1, "prompt": f"number {number}"} for number in range(200)]
        told = list(pool.map(lambda wish: client.post("/v1/completions", json=wish), wishes))
    assert [answer.status_code for answer in told] == [200] * 200
    assert plain.idle()
