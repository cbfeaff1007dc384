"""Places are held while prompts are read, and lists are read once: no request takes more than what it holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from raw_http import connected, request, soon
from serving import Served, serving, tiny_llm

from outrider import LLM, SamplingParams
from outrider.grammar import GrammarCompiler
from outrider.models.files.tokenizer import Tokenizer
from outrider.server.desk import Lane

LARGE = {"user": "x" * 5000}
"""More than what the event loop reads."""
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the sea", **LARGE},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the sea"}], **LARGE},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("places"), scheduler={"max_running": 2}) as made:
        yield made


class Gate:
    """Holds up whoever calls a function, until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.arrived, self.opened, inside = 0, threading.Event(), getattr(owner, name)

        def held(*given: Any, **named: Any) -> Any:
            self.arrived += 1
            assert self.opened.wait(20), "nobody went on meanwhile"
            return inside(*given, **named)

        patch.setattr(owner, name, held)


@contextmanager
def asking(served: Served, path: str, count: int, **fields: Any) -> Iterator[list[Callable[[], httpx.Response]]]:
    """Ask several times at once; each is waited for by calling it."""

    def ask() -> httpx.Response:
        with served.client() as client:
            return client.post(path, json={"max_tokens": 1, **ROUTES[path], **fields})

    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(ask).result for _ in range(count)]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_a_place_is_held_while_a_prompt_is_read(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, streams: bool
) -> None:
    with serving(llm, max_waiting=1) as served, served.client() as client:
        gate = Gate(monkeypatch, Tokenizer, "encode")
        with asking(served, path, 3, stream=streams) as answers:
            assert soon(lambda: gate.arrived == 3)
            for other, wish in ROUTES.items():
                assert client.post(other, json=wish).status_code == 429
            assert client.post("/tokenize", json={"prompt": "the sea"}).status_code == 429
            served.server.drain()
            assert soon(lambda: served.desk.draining)
            assert client.post(path, json=ROUTES[path]).status_code == 503
            gate.opened.set()
            assert [wait().status_code for wait in answers] == [200] * 3
        assert soon(served.idle)


@pytest.mark.parametrize("path", ROUTES)
def test_a_client_that_leaves_gives_its_place_back(llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with serving(llm, max_waiting=0) as served, served.client() as client:
        gate = Gate(monkeypatch, Tokenizer, "encode")
        with connected(served.port) as one:
            one.sendall(request(path, ROUTES[path]))
            assert soon(lambda: gate.arrived == 1)
            assert served.desk.open == 1
        assert soon(lambda: served.desk.open == 0)
        gate.opened.set()
        assert client.post(path, json=ROUTES[path] | {"max_tokens": 1}).status_code == 200
        assert soon(served.idle)


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "guided": ("/v1/completions", {"guided_regex": "[ab]{2}"}),
    "structured": ("/v1/chat/completions", {"structured_outputs": {"choice": ["a", "b"]}}),
    "format": ("/v1/chat/completions", {"response_format": {"type": "json_object"}}),
    "required": ("/v1/chat/completions", {"tool_choice": "required"}),
    "strict": ("/v1/chat/completions", {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_prompts_are_read_while_grammars_are_compiled(llm: LLM, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    path, fields = FORMS[form]
    if form in ("required", "strict"):
        function = {"name": "look", "parameters": {"type": "object"}, "strict": form == "strict"}
        fields = fields | {"tools": [{"type": "function", "function": function}]}
    with serving(llm, max_waiting=20) as served, served.client() as client:
        gate = Gate(monkeypatch, GrammarCompiler, "compile")
        with asking(served, path, 10, **fields) as answers:
            assert soon(lambda: gate.arrived > 0 and served.desk.open == 10)
            for other, wish in ROUTES.items():
                assert client.post(other, json=wish | {"max_tokens": 1}).status_code == 200
            gate.opened.set()
            assert [wait().status_code for wait in answers] == [200] * 10


@pytest.mark.parametrize("lane", [Lane.LONG, Lane.GRAMMAR])
def test_a_server_that_ends_waits_for_no_reader(llm: LLM, monkeypatch: pytest.MonkeyPatch, lane: Lane) -> None:
    """What has not begun is forgotten; a process that ends would have to wait for it."""
    with serving(llm, max_waiting=40) as served:
        owner, name = (Tokenizer, "encode") if lane is Lane.LONG else (GrammarCompiler, "compile")
        gate = Gate(monkeypatch, owner, name)
        asks = [connected(served.port) for _ in range(20)]
        fields = {} if lane is Lane.LONG else {"guided_regex": "a"}
        for one in asks:
            one.sendall(request("/v1/completions", ROUTES["/v1/completions"] | fields))
        assert soon(lambda: served.desk.open == 20 and gate.arrived > 0)
        for _ in range(2):
            served.server.handle_exit(2, None)
        served.thread.join(5)
        assert not served.thread.is_alive()
        begun = gate.arrived
        served.desk.close()
        gate.opened.set()
        for pool in served.desk._threads.values():
            pool.shutdown(wait=True)
        assert gate.arrived == begun < 20
        for one in asks:
            one.close()


# Several prompts


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with tiny_llm(tmp_path_factory.mktemp("several")) as made, serving(made) as running:
        yield running


@pytest.mark.parametrize(
    "fields",
    [
        {"prediction": {"type": "content", "content": "a tale of the sea"}},
        {"bad_words": ["a tale of the sea"]},
        {"allowed_token_ids": list(range(300))},
        {"guided_regex": "[a-f]{2}"},
        {"logit_bias": {str(token): 1.0 for token in range(300)}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_prompts_share_is_read_once(
    plain: Served, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    counts = {"params": 0, "tale": 0, "grammar": 0}
    check, encode, compile_one = SamplingParams.__post_init__, Tokenizer.encode, GrammarCompiler.compile

    def checking(self: SamplingParams) -> None:
        counts["params"] += 1
        check(self)

    def encoding(self: Tokenizer, text: str, *more: Any, **named: Any) -> list[int]:
        counts["tale"] += "tale" in text
        return encode(self, text, *more, **named)

    def compiling(self: GrammarCompiler, *given: Any) -> Any:
        counts["grammar"] += 1
        return compile_one(self, *given)

    monkeypatch.setattr(SamplingParams, "__post_init__", checking)
    monkeypatch.setattr(Tokenizer, "encode", encoding)
    monkeypatch.setattr(GrammarCompiler, "compile", compiling)
    found = []
    with plain.client() as client:
        for count in (1, 24):
            counts.update(dict.fromkeys(counts, 0))
            body = {"prompt": [[7, 8, 9]] * count, "max_tokens": 1, **fields}
            told = client.post("/v1/completions", json=body)
            assert told.status_code == 200, told.text
            found.append(dict(counts))
            assert len({choice["seed"] for choice in told.json()["choices"]}) == count
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["allowed_token_ids", "logit_bias", "bad_words"])
@pytest.mark.parametrize(("prompts", "n"), [(1, 128), (128, 1), (16, 8)])
def test_lists_are_bounded_by_the_outputs_of_all_prompts(plain: Served, name: str, prompts: int, n: int) -> None:
    listed: dict[str, Any] = {
        "allowed_token_ids": list(range(300)) * 30,
        "logit_bias": {str(token): 1.0 for token in range(9000)},
        "bad_words": ["ab" * 1000] * 5,
    }
    with plain.client() as client:
        body = {"prompt": [[7, 8, 9]] * prompts, "n": n, "max_tokens": 1, name: listed[name]}
        told = client.post("/v1/completions", json=body)
    assert told.status_code == 400
    assert f"{name}" in told.json()["error"]["message"]
    assert "for all outputs together" in told.json()["error"]["message"]


def test_more_prompts_than_there_are_places_are_not_read(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(plain.desk), "run", None)
    most = plain.desk.max_running + plain.desk.settings.max_waiting
    with plain.client() as client:
        for prompts, n in ((most + 1, 1), (most // 2 + 1, 2)):
            told = client.post("/v1/completions", json={"prompt": ["a"] * prompts, "n": n})
            assert told.status_code == 400
            assert f"asks for {prompts * n} outputs" in told.json()["error"]["message"]


def test_a_prediction_is_cut_to_what_an_output_can_be(plain: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    submit = plain.llm.engine.submit

    def watching(prompt: Any, params: SamplingParams, **more: Any) -> Any:
        seen.append(len(params.prediction_ids))
        return submit(prompt, params, **more)

    monkeypatch.setattr(plain.llm.engine, "submit", watching)
    wish = {"max_tokens": 1, "prediction": {"type": "content", "content": "the sea " * 10_000}}
    with plain.client() as client:
        for path, prompt in (
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            sent = json.dumps(prompt | wish)
            told = client.post(path, content=sent, headers={"Content-Type": "application/json"})
            assert told.status_code == 200
    assert seen == [512, 512]
