"""Bodies, headers, connections and times past their bounds; every refusal is JSON, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from raw_http import asked, connected, error_of, parsed, read_all, request, reset, soon
from serving import Served, serving, tiny_llm

from outrider import LLM
from outrider.server.bodies import read_json
from outrider.server.failures import Refusal

PATHS = ("/v1/completions", "/v1/chat/completions")
WISH: dict[str, Any] = {"prompt": "the sea", "max_tokens": 4, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
LONG = WISH | {"max_tokens": 480, "ignore_eos": True}
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with tiny_llm(tmp_path_factory.mktemp("limits")) as llm:
        yield llm


@pytest.fixture(scope="module")
def roomy(llm: LLM) -> Iterator[Served]:
    with serving(llm) as served:
        yield served


@pytest.fixture(scope="module")
def tight(llm: LLM) -> Iterator[Served]:
    with serving(llm, max_body_megabytes=1, receive_seconds=0.6, send_seconds=0.6) as served:
        served.server.config.timeout_keep_alive = 1
        yield served


def refused(served: Served, sent: bytes, status: int) -> dict[str, Any]:
    """The error of a refusal; the server lives on."""
    told, headers, body = asked(served.port, sent)
    assert told == status, body[:300]
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    error = error_of(body)
    with served.client() as client:
        assert client.get("/health").status_code == 200
    return error


# Bodies


def nested(depth: int, inner: bytes = b"1") -> bytes:
    return b"[" * depth + inner + b"]" * depth


BODIES = {
    "nothing": b"",
    "no JSON": b"prompt=x",
    "no object": b"[]",
    "a number": b"5",
    "null": b"null",
    "cut": b'{"prompt": "x"',
    "more": b'{"prompt": "x"} x',
    "NaN": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "temperature": Infinity}',
    "overflow": b'{"prompt": "x", "temperature": 1e999}',
    "many digits": b'{"prompt": "x", "max_tokens": ' + b"9" * 100_000 + b"}",
    "some digits": b'{"prompt": "x", "seed": ' + b"9" * 400 + b"}",
    "deep": nested(100_000),
    "deep field": b'{"prompt": ' + nested(100_000) + b"}",
    "deep object": b'{"prompt": "x", "chat_template_kwargs": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "no UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "x"}'.encode("utf-16"),
    "half a surrogate": b'{"prompt": "\\ud800"}',
    "half a surrogate in a name": b'{"prompt": "x", "\\udfff": 1}',
    "a control character": b'{"prompt": "\x00"}',
    "many lists": b'{"prompt": [' + b"[]," * 300_000 + b"[]]}",
    "many names": json.dumps({f"x{n}": n for n in range(100_000)}).encode(),
    "some names": json.dumps({**WISH, **{f"x{n}": n for n in range(16_000)}}).encode(),
    "many biases": json.dumps({"prompt": "x", "logit_bias": {str(n): 1 for n in range(1_000_000)}}).encode()[: 8 << 20],
    "a large stop": json.dumps({"prompt": "x", "stop": "x" * 1_000_000}).encode(),
    "many stops": json.dumps({"prompt": "x", "stop": ["x"] * 1_000_000}).encode(),
    "wrong stops": json.dumps({"prompt": "x", "stop": [1] * 1_000_000}).encode(),
    "many bad words": json.dumps({"prompt": "x", "bad_words": ["x"] * 1_000_000}).encode(),
    "prompts of all kinds": json.dumps({"prompt": ["x", 1] * 500_000}).encode(),
    "wrong messages": json.dumps({"messages": [1] * 1_000_000}).encode(),
    "wrong parts": json.dumps({"messages": [{"role": "user", "content": [1] * 1_000_000}]}).encode(),
    "many metadata": json.dumps({**CHAT, "metadata": {f"x{n}": n for n in range(10_000)}}).encode(),
}


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_that_are_none(roomy: Served, kind: str) -> None:
    """No error is longer than its reader's patience, and none takes time for each wrong item."""
    for path in (*PATHS, "/tokenize", "/detokenize"):
        status, _, body = asked(roomy.port, request(path, BODIES[kind], "Connection: close"))
        assert status == 400
        assert error_of(body)["type"] == "invalid_request_error"
        assert len(body) < 5000


@pytest.mark.parametrize("kind", [kind for kind, body in BODIES.items() if len(body) > 100_000])
def test_large_bodies_are_refused_in_the_time_that_reading_takes(kind: str) -> None:
    from pydantic import ValidationError

    from outrider.server.wire.chat import ChatRequest
    from outrider.server.wire.completions import CompletionRequest

    for model in (ChatRequest, CompletionRequest):
        try:
            model.model_validate(read_json(BODIES[kind]))
        except Refusal:
            return
        except ValidationError as error:
            assert error.error_count() < 1 << 14  # each holds what it refuses
        else:
            raise AssertionError("it is refused")


def test_what_json_allows(roomy: Served) -> None:
    for body in (
        b'\xef\xbb\xbf{"prompt": "x", "max_tokens": 1}',
        b'{"prompt": "x", "prompt": "y", "max_tokens": 1}',
        b'{"prompt": "\\u0000\\ud83d\\ude00", "max_tokens": 1e0, "max_tokens": 1}',
        b' \n{"prompt":"x","max_tokens":1}\n ',
    ):
        status, _, answer = asked(roomy.port, request("/v1/completions", body, "Connection: close"))
        assert status == 200, answer


def test_values_past_every_bound_are_refused_and_not_crashed_on(roomy: Served) -> None:
    numbers = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "n", "seed", "presence_penalty")
    fields = (*numbers, "frequency_penalty", "repetition_penalty", "timeout", "priority", "logprobs", "prompt_logprobs")
    with roomy.client() as client:
        for field in fields:
            for number in ("1e999", "-1e999", "1e308", str(2**63), str(-(2**64)), "1" + "0" * 300):
                body = f'{{"prompt": "x", "max_tokens": 1, "{field}": {number}}}'
                told = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
                assert told.status_code in (200, 400, 408), (field, number, told.text)
        for bias in ({"0": 1e30}, {"-1": 1}, {"x": 1}, {"1_0": 1}, {"١": 1}, {str(2**70): 1}, {"319": 5, "320": 5}):
            told = client.post("/v1/completions", json=WISH | {"logit_bias": bias})
            assert told.status_code in (200, 400), (bias, told.text)
    assert soon(roomy.idle)


def test_bodies_past_the_limit(tight: Served) -> None:
    """The client that sends on can still read why."""
    large = b'{"prompt": "' + b"x" * (3 << 20) + b'"}'
    assert "1 MiB" in refused(tight, request("/v1/completions", large, "Connection: close"), 413)["message"]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nConnection: close\r\n"
    chunks = b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(48)) + b"0\r\n\r\n"
    refused(tight, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks, 413)
    refused(tight, f"{head}Content-Length: {10**15}\r\n\r\n".encode(), 413)
    with tight.client() as client:
        for _ in range(2):  # on one connection
            told = client.post("/v1/completions", content=large, headers={"Content-Type": "application/json"})
            assert told.status_code == 413
            error_of(told.text)
        assert client.post("/v1/completions", json=WISH).status_code == 200


@pytest.mark.parametrize(
    "length",
    ["-1", "abc", "1e3", "9" * 5000, "5, 6", "+5", "0x10", "5\r\nContent-Length: 6", "5\r\nTransfer-Encoding: chunked"],
)
def test_lengths_that_are_none(tight: Served, length: str) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nConnection: close\r\n"
    refused(tight, f"{head}Content-Length: {length}\r\n\r\n{{}}".encode(), 400)


@pytest.mark.parametrize("depth", [1, 100, 300, 450, 700, 900, 960, 990, 1100, 5000, 100_000])
@pytest.mark.parametrize("ends", ["", "]"])
def test_arguments_of_calls_of_any_depth(roomy: Served, depth: int, ends: str) -> None:
    """They are JSON within a text, which the reader of bodies does not see."""
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "[" * depth + ends * depth}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    with roomy.client() as client:
        told = client.post("/v1/chat/completions", json=CHAT | {"messages": [*CHAT["messages"], said]})
    assert told.status_code == (200 if ends and depth <= 100 else told.status_code)
    assert told.status_code == (400 if not ends or depth >= 5000 else told.status_code)
    if told.status_code != 200:
        assert told.status_code == 400
        assert error_of(told.text)["param"] == "messages"


# HTTP


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nNo colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_not_http(tight: Served, sent: bytes) -> None:
    refused(tight, sent, 400)


def test_the_first_http_is_answered_and_closed(tight: Served) -> None:
    status, headers, body = asked(tight.port, b"GET /health HTTP/1.0\r\n\r\n")
    assert status == 200
    assert headers["connection"] == "close"
    assert json.loads(body)


def test_an_upgrade_is_not_made(tight: Served) -> None:
    headers = (
        "Connection: Upgrade, close",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: eA==",
    )
    status, _, _ = asked(tight.port, request("/health", None, *headers, method="GET"))
    assert status == 200


def test_floods_of_headers(tight: Served) -> None:
    refused(tight, request("/health", None, *(f"X-{n}: 1" for n in range(1000)), method="GET"), 431)
    refused(tight, request("/health", None, "X: " + "a" * 100_000, method="GET"), 431)
    refused(tight, request(f"/{'x' * 100_000}", None, method="GET"), 431)
    for begin in (b"GET / HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X", b"\r\n"):
        told = endless(tight, begin)
        assert told is None or error_of(told)


@pytest.mark.parametrize("begin", ["0\r\nX: ", "5;extension=", "0" * 10])
def test_floods_of_what_stands_beside_the_body(tight: Served, begin: str) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n{begin}"
    endless(tight, head.encode())


def endless(served: Served, begin: bytes) -> bytes | None:
    """Send one line without an end; the body of the answer, if it could still be read."""
    with connected(served.port) as connection:
        sent = 0
        try:
            connection.sendall(begin)
            while sent < 32 << 20:
                sent += connection.send(b"0" * 65536)
        except ConnectionError:
            pass
        assert sent < 32 << 20, "the server read on"
        answer = read_all(connection)
    return parsed(answer)[2] if answer else None


# Time


HEALTH = request("/health", None, method="GET")
CHUNKED = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("begin", "trickle", "told"),
    [
        (b"", b"", b"408"),
        (b"", b"\r\n", b"408"),
        (b"GET", b"", b"408"),
        (b"GET ", b" ", b"408"),
        (b"GET /", b"x", b"408"),
        (HEALTH[:-2], b"", b"408"),
        (HEALTH[:-2], b"x", b"408"),
        (HEALTH[:-2], b"X: y\r\n", b"408"),
        (request("/v1/completions", WISH)[:-40], b" ", b"408"),
        (request("/v1/completions", WISH)[:-5], b"", b"408"),
        (request("/v1/completions", WISH, "Expect: 100-continue")[:-40], b" ", b"408"),
        (CHUNKED, b"", b"408"),
        (CHUNKED, b"1\r\nx\r\n", b"408"),
        (CHUNKED + b"0\r\n", b"X: y\r\n", b"408"),
        (HEALTH[:-2] + b"Content-Length: 1000\r\n\r\n", b"x", b"200"),
        (HEALTH, b"", b"200"),
        (HEALTH, b"\r\n", b"200"),
    ],
)
def test_clients_that_send_slowly(tight: Served, begin: bytes, trickle: bytes, told: bytes) -> None:
    """Whatever they have sent, and though they send a byte now and then, the connection ends."""
    with connected(tight.port) as connection:
        connection.sendall(begin)
        end, answer = time.monotonic() + 8, b""
        connection.settimeout(0.1)
        open_ = True
        while open_:
            assert time.monotonic() < end, "the connection is open still"
            try:
                part = connection.recv(4096)
                answer += part
                open_ = bool(part)
            except TimeoutError:
                with suppress(ConnectionError):
                    connection.sendall(trickle)
            except ConnectionError:
                open_ = False
    answers = answer.split(b"HTTP/1.1 ")[1:]
    statuses = [one[:3] for one in answers]
    assert statuses[-1:] == [b"408"] or statuses == [told]
    assert told in statuses
    if told == b"408":
        error_of(answers[-1].partition(b"\r\n\r\n")[2])
    assert soon(lambda: not tight.server.server_state.connections)
    assert tight.idle()


def test_many_who_say_nothing(tight: Served) -> None:
    silent = [connected(tight.port) for _ in range(100)]
    with tight.client() as client:
        assert client.post("/v1/completions", json=WISH).status_code == 200
    assert soon(lambda: len(tight.server.server_state.connections) < 10)
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("streamed", [True, False])
def test_clients_that_do_not_read(tight: Served, streamed: bool) -> None:
    """The request is cancelled, the connection dropped, and what waits for the client stays small."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", tight.port))
        many = {"prompt": ["the sea and the land " * 20] * 24, "echo": True, "logprobs": 20}
        body = LONG | many | {"stream": streamed, "max_tokens": 150 if streamed else 1}
        connection.sendall(request("/v1/completions", body))
        assert soon(lambda: tight.desk.open > 0)
        held = 0

        def gone() -> bool:
            nonlocal held
            for one in list(tight.server.server_state.connections):
                held = max(held, one.transport.get_write_buffer_size())
            return not tight.server.server_state.connections

        assert soon(gone, 20)
        assert soon(tight.idle)
        assert held < 8 << 20


def test_clients_that_do_not_read_a_short_answer(tight: Served) -> None:
    """The answer fits into buffers; its connection ends all the same, as one that is not used."""
    with connected(tight.port) as connection:
        connection.sendall(request("/v1/completions", WISH))
        assert soon(lambda: not tight.server.server_state.connections, 10)


# Connections


def test_more_connections_than_there_may_be(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="outrider.server"), serving(llm, max_connections=4) as served:
        idle = [connected(served.port) for _ in range(6)]
        assert soon(lambda: len(served.server.server_state.connections) == 6)
        for _ in range(3):
            status, headers, body = asked(served.port, request("/v1/completions", WISH, "Connection: close"))
            assert status == 503
            assert int(headers["retry-after"]) > 0
            assert headers["x-request-id"]
            assert headers["x-content-type-options"] == "nosniff"
            assert error_of(body)["code"] == "overloaded"
        assert asked(served.port, request("/health", None, "Connection: close", method="GET"))[0] == 200
        for connection in idle:
            connection.close()
        assert soon(lambda: not served.server.server_state.connections)
        with served.client() as client:
            assert client.post("/v1/completions", json=WISH).status_code == 200
            counts = client.get("/metrics").text
        assert sum("503" in line and "overloaded" in line for line in caplog.messages) == 3
        assert re.search(r'refused_requests_total\{code="overloaded".*\} 3', counts)
        assert re.search(r'http_requests_total\{.*status="503".*\} 3', counts)


def test_pipelined_requests_are_answered_in_order_and_have_a_bound(roomy: Served) -> None:
    asks = [request(path, None, method="GET") for path in ("/health", "/version", "/nowhere")]
    last = request("/ready", None, "Connection: close", method="GET")
    with connected(roomy.port) as connection:
        connection.sendall(b"".join([*asks, last]))
        answers = read_all(connection).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"200", b"404", b"200"]
    with connected(roomy.port) as connection, suppress(ConnectionError):
        connection.sendall(request("/v1/completions", LONG) + b"".join(asks) * 100)
        read_all(connection)
    assert soon(roomy.idle)


# The event loop


@pytest.mark.parametrize("where", ["prompt", "message", "tokens", "a call", "a template's value", "bad words"])
def test_long_texts_are_not_read_on_the_event_loop(llm: LLM, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    long = "the sea and the land " * 1000
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": long})}}
    path, wish = {
        "prompt": ("/v1/completions", {"prompt": long}),
        "message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
        "tokens": ("/tokenize", {"prompt": long}),
        "a call": ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}),
        "a template's value": ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"documents": long}}),
        "bad words": ("/v1/completions", WISH | {"bad_words": [long[n : n + 4000] for n in range(9)]}),
    }[where]
    readers = set[str]()

    def watching(read: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            readers.add(threading.current_thread().name)
            return read(*given, **named)

        return watched

    for name in ("encode", "apply_chat_template"):
        monkeypatch.setattr(type(llm.tokenizer), name, watching(getattr(type(llm.tokenizer), name)))
    with serving(llm) as served, served.client() as client:
        assert client.post(path, json=wish).status_code in (200, 400)
        assert readers
        assert not readers & {served.thread.name, "outrider-engine"}


def test_the_event_loop_goes_on_while_a_million_characters_are_encoded(llm: LLM) -> None:
    beats: list[float] = []
    spans: list[tuple[float, float]] = []
    encode = type(llm.tokenizer).encode

    def timed(*given: Any, **named: Any) -> Any:
        began = time.monotonic()
        found = encode(*given, **named)
        spans.append((began, time.monotonic()))
        return found

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.001)

    with serving(llm) as served, served.client() as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(llm.tokenizer), "encode", timed)
        loop = served.server._loop
        assert loop is not None
        beating = asyncio.run_coroutine_threadsafe(beat(), loop)
        assert client.post("/tokenize", json={"prompt": "the sea and the land " * 50_000}).status_code == 200
        beating.cancel()
    ((began, ended),) = spans
    assert sum(began < one < ended for one in beats) > 3


def test_the_tokenizer_is_copied_before_the_first_request(roomy: Served) -> None:
    """Whoever first writes the spelling of a special token would keep all others waiting."""
    assert roomy.llm.tokenizer is not None
    assert "_copy" in vars(roomy.llm.tokenizer.literal_text)


def test_a_client_reset_in_the_middle_of_a_large_body(tight: Served) -> None:
    with closing(connected(tight.port)) as connection:
        connection.sendall(request("/v1/completions", b"x" * 900_000)[:500_000])
        reset(connection)
    assert soon(lambda: not tight.server.server_state.connections)
    assert tight.idle()
