"""Signals: open requests finish, new ones are refused, and the process ends with 0; a second signal ends it at once."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from raw_http import asked, connected, error_of, parsed, read_all, request, soon
from serving import serving, tiny_llm
from tiny_folder import make_folder

KEY = f"sk-{secrets.token_hex(12)}"
BEARER = f"Authorization: Bearer {KEY}"
BODY = {
    "prompt": "the sea that nobody may see",
    "temperature": 0,
    "ignore_eos": True,
    "speculation": {"enabled": False},
}
SOME = BODY | {"max_tokens": 150}
CHAT = {"messages": [{"role": "user", "content": "the sea"}]}
LONG = BODY | {"max_tokens": 480}


@contextmanager
def process(folder: Path, *options: str, first: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in its own process, and its port; ``first`` is run before it."""
    run = f"{first}\nimport sys\nfrom outrider.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", run, "serve", "--model", str(folder), "--backend", "hf", "--port", "0"]
    command += ["--context-length", "512", *options]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "OUTRIDER_API_KEY": KEY}  # more threads would wait for each other
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone) as child:
        try:
            assert child.stderr is not None
            line = next(line for line in child.stderr if "ready" in line)
            found = re.fullmatch(r"Outrider ready: http://127\.0\.0\.1:(\d+)\n", line)
            assert found, line
            yield child, int(found[1])
        finally:
            child.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("shutdown"))


def test_a_signal_lets_open_requests_finish(folder: Path) -> None:
    with process(folder) as (child, port), connected(port) as waits, connected(port) as streams:
        waits.sendall(request("/v1/completions", SOME, BEARER))
        streams.sendall(request("/v1/completions", SOME | {"stream": True}, BEARER))
        first = streams.recv(4096)
        child.send_signal(signal.SIGTERM)
        assert soon(lambda: asked(port, request("/ready", None, "Connection: close", method="GET"))[0] == 503)
        for path, body in (("/v1/completions", SOME), ("/v1/chat/completions", CHAT)):
            for streamed in (False, True):
                sent = request(path, body | {"stream": streamed}, BEARER, "Connection: close")
                status, headers, answer = asked(port, sent)
                assert status == 503
                assert int(headers["retry-after"]) > 0
                assert error_of(answer)["code"] == "draining"
        assert (first + read_all(streams)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        status, _, answer = parsed(read_all(waits))
        assert status == 200
        assert json.loads(answer)["usage"]["completion_tokens"] == SOME["max_tokens"]
        assert child.wait(10) == 0
        assert child.stdout is not None
        assert child.stdout.read() == ""
        assert child.stderr is not None
        logged = child.stderr.read()
        assert "Traceback" not in logged
        for private in (KEY, SOME["prompt"], json.loads(answer)["choices"][0]["text"]):
            assert private not in logged


def test_a_second_signal_ends_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tiny_llm(tmp_path) as llm, serving(llm) as served:
        with connected(served.port) as streams, connected(served.port) as waits:
            streams.sendall(request("/v1/completions", LONG | {"n": 16, "stream": True}))
            waits.sendall(request("/v1/completions", LONG | {"n": 16}))
            assert streams.recv(100)
            assert soon(lambda: served.desk.open == 32)
            served.server.handle_exit(signal.SIGINT, None)
            assert soon(lambda: served.desk.draining)
            served.thread.join(0.5)
            assert served.thread.is_alive()
            served.server.handle_exit(signal.SIGINT, None)
            served.thread.join(3)
            assert not served.thread.is_alive()
            assert b"[DONE]" not in read_all(streams)
        assert soon(served.idle)
    assert not [record for record in caplog.records if record.exc_info]


SLOW = """
import threading
from outrider.models.files.tokenizer import Tokenizer
encode = Tokenizer.encode
def held(self, text, *more, **named):
    if text.startswith("held"):
        print("reading", flush=True)
        threading.Event().wait(60)
    return encode(self, text, *more, **named)
Tokenizer.encode = held
"""
"""Makes a prompt that takes a minute to read."""


def test_a_second_signal_does_not_wait_for_prompts_that_are_read(folder: Path) -> None:
    with process(folder, first=SLOW) as (child, port), connected(port) as waits:
        waits.sendall(request("/v1/completions", SOME | {"prompt": "held" + "x" * 5000}, BEARER))
        assert child.stdout is not None
        assert child.stdout.readline() == "reading\n"
        child.send_signal(signal.SIGINT)
        assert soon(lambda: asked(port, request("/ready", None, "Connection: close", method="GET"))[0] == 503)
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0


def test_what_does_not_finish_in_time_is_told_so(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as llm, serving(llm, drain_seconds=0.1) as served:
        with connected(served.port) as streams, connected(served.port) as waits, connected(served.port) as idle:
            streams.sendall(request("/v1/completions", LONG | {"n": 16, "stream": True}))
            waits.sendall(request("/v1/completions", LONG | {"n": 16}))
            assert streams.recv(100)
            assert soon(lambda: served.desk.open == 32)
            served.server.drain()
            told = read_all(streams)
            assert b'"code":"draining"' in told
            assert told.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            status, headers, answer = parsed(read_all(waits))
            assert status == 503
            assert headers["retry-after"]
            assert error_of(answer)["code"] == "draining"
            assert read_all(idle) == b""
        served.thread.join(5)
        assert not served.thread.is_alive()
        assert served.idle()


def test_a_slow_reader_gets_all_of_its_answer(tmp_path: Path) -> None:
    """Its request has ended in the engine long before."""
    with tiny_llm(tmp_path) as llm, serving(llm, drain_seconds=10.0) as served, socket.socket() as reads:
        reads.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reads.connect(("127.0.0.1", served.port))
        reads.settimeout(10)
        body = LONG | {"n": 32, "logprobs": 20, "max_tokens": 64, "stream": False}
        reads.sendall(request("/v1/completions", body))
        assert soon(lambda: served.desk.open > 0)
        assert soon(lambda: served.desk.open == 0, 20)
        served.server.drain()
        time.sleep(1.5)
        status, headers, answer = parsed(read_all(reads))
        assert status == 200
        assert len(answer) == int(headers["content-length"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "203.0.113.7"), "cannot listen on 203.0.113.7:0"),
        (("--host", "no such host"), "cannot listen on no such host:0"),
        (("--host", "::zz"), "cannot listen on"),
        (("--port", "66000"), "--port"),
        (("--api-key", " "), "key"),
    ],
)
def test_bad_addresses_and_keys_are_one_sentence(
    capfd: pytest.CaptureFixture[str], folder: Path, options: tuple[str, ...], said: str
) -> None:
    from outrider.cli import main

    assert main(["serve", "--model", str(folder), "--port", "0", *options]) == 2
    told = capfd.readouterr().err.strip()
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_port_in_use_is_one_sentence(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    from outrider.cli import main

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--model", str(folder), "--port", str(port)]) == 2
    told = capfd.readouterr().err.strip()
    assert f"127.0.0.1:{port} is in use" in told
    assert "--port" in told
    assert len(told.splitlines()) == 1
