"""Clients that leave at any point: their requests end in the engine, and nobody else notices."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest
from raw_http import connected, read_all, request, reset, soon
from serving import Served, serving, tiny_llm

LONG = {"max_tokens": 400, "temperature": 0, "ignore_eos": True, "speculation": {"enabled": False}}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "tell me of the sea"}], **LONG},
    "/v1/completions": {"prompt": "the sea", **LONG},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with tiny_llm(tmp_path_factory.mktemp("leaving")) as llm, serving(llm) as running:
        yield running


def unharmed(served: Served) -> bool:
    """Whether another client's answer is the library's."""
    wish = {"max_tokens": 12, "temperature": 0}
    with served.client() as client:
        told = client.post("/v1/completions", json={"prompt": "another", **wish}).json()
    return told["choices"][0]["text"] == served.llm.generate("another", **wish)[0].text


def busy(served: Served) -> bool:
    """Whether the engine has a request."""
    return served.llm.driver.between_rounds(lambda engine: not engine.scheduler.idle)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("abrupt", [False, True])
@pytest.mark.parametrize("part", [0, 5, 100, -30, -1])
def test_while_the_request_is_sent(alone: Served, path: str, abrupt: bool, part: int) -> None:
    connection = connected(alone.port)
    connection.sendall(request(path, BODIES[path])[:part])
    (reset if abrupt else type(connection).close)(connection)
    assert soon(lambda: not alone.server.server_state.connections)
    assert alone.idle()
    assert unharmed(alone)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("abrupt", [False, True])
@pytest.mark.parametrize("events", [0, 1, 2, 5])
def test_while_a_stream_is_read(alone: Served, path: str, abrupt: bool, events: int) -> None:
    connection = connected(alone.port)
    connection.sendall(request(path, BODIES[path] | {"stream": True}))
    seen = b""
    while seen.count(b"\n\n") < events:
        seen += connection.recv(4096)
    if not events:
        assert soon(lambda: busy(alone))
    (reset if abrupt else type(connection).close)(connection)
    assert soon(alone.idle)
    assert seen.count(b"[DONE]") == 0, "the stream was over before the client left"
    assert unharmed(alone)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("abrupt", [False, True])
def test_while_an_answer_is_made(alone: Served, path: str, abrupt: bool) -> None:
    cancelled = ended(alone)
    connection = connected(alone.port)
    connection.sendall(request(path, BODIES[path]))
    assert soon(lambda: busy(alone))
    (reset if abrupt else type(connection).close)(connection)
    assert soon(alone.idle)
    assert ended(alone) == cancelled + 1
    assert unharmed(alone)


def ended(served: Served) -> int:
    """Requests that were cancelled so far."""
    counts = served.llm.driver.between_rounds(lambda engine: dict(engine.scheduler.ended))
    return {str(reason): count for reason, count in counts.items()}.get("cancelled", 0)


def test_with_the_next_request_already_sent(alone: Served) -> None:
    """The server hears of the end though another request waits behind the one that runs."""
    cancelled = ended(alone)
    with connected(alone.port) as connection:
        path = "/v1/completions"
        connection.sendall(request(path, BODIES[path] | {"stream": True}))
        seen = b""
        while b"data: " not in seen:
            seen += connection.recv(4096)
        connection.sendall(request("/health", method="GET"))
    assert soon(alone.idle)
    assert ended(alone) == cancelled + 1


def test_a_hundred_that_leave_harm_nobody_who_stays(alone: Served) -> None:
    path = "/v1/completions"
    stays = connected(alone.port)
    stays.sendall(request(path, BODIES[path] | {"max_tokens": 100, "stream": True}, "Connection: close"))
    for number in range(100):
        leaving = connected(alone.port)
        leaving.sendall(request(path, BODIES[path] | {"stream": bool(number % 2), "prompt": f"number {number}"}))
        (reset if number % 3 else type(leaving).close)(leaving)
    lines = [line for line in read_all(stays).decode().split("\n") if line.startswith("data: {")]
    stays.close()
    text = "".join(choice["text"] for line in lines for choice in json.loads(line[6:])["choices"])
    assert text == alone.llm.generate("the sea", max_tokens=100, temperature=0, ignore_eos=True)[0].text
    assert soon(alone.idle)


READS_A_BYTE = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.stdin.buffer.read())
connection.recv(1)
print("reads", flush=True)
time.sleep(60)
"""


def test_a_client_process_is_killed(alone: Served) -> None:
    cancelled = ended(alone)
    sent = request("/v1/completions", BODIES["/v1/completions"] | {"stream": True})
    with Popen([sys.executable, "-S", "-c", READS_A_BYTE, str(alone.port)], stdin=PIPE, stdout=PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(sent)
        child.stdin.close()
        assert child.stdout.readline() == b"reads\n"
        child.kill()
    assert soon(alone.idle)
    assert ended(alone) == cancelled + 1
