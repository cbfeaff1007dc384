"""A server that answers as Outrider's does, from a script: for tests of the page alone."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outrider.server.page import HEADERS, page_files

Pieces = list[tuple[str, bool]]
USAGE = {
    "prompt_tokens": 128,
    "completion_tokens": 57,
    "total_tokens": 185,
    "prompt_tokens_details": {"cached_tokens": 96},
    "completion_tokens_details": {"reasoning_tokens": 0},
    "speculation": {
        "algorithm": "suffix",
        "rounds": 15,
        "drafted": 60,
        "tested": 50,
        "accepted": 42,
        "acceptance_rate": 0.84,
        "accepted_length": 3.8,
        "forced": 0,
    },
}
TIMINGS: dict[str, float | None] = {
    "queue_s": 0.0,
    "first_token_s": 0.124,
    "total_s": 0.4,
    "tokens_per_second": 212.4,
    "plain_tokens_per_second": 96.3,
}


@dataclass
class Answer:
    """One scripted answer to a chat request."""

    chunks: list[Pieces] = field(default_factory=lambda: [[("Good ", False), ("day.", True)]])
    reasoning: list[Pieces] = field(default_factory=list)
    finish: str = "stop"
    timings: dict[str, float | None] = field(default_factory=lambda: TIMINGS)
    status: int = 200
    error: dict[str, Any] | None = None
    """The body of an error status, or what ends the stream after its chunks."""
    headers: dict[str, str] = field(default_factory=dict)
    wait_before: int | None = None
    """The number of the chunk before which the stream waits for ``go_on``."""
    cut: bool = False
    """Whether the connection ends after the chunks, without a last one."""
    pause: float = 0.0
    """Seconds between chunks."""


class FakeServer:
    """State that the tests write and read; the handler's threads use it, too."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.answers: deque[Answer] = deque()
        self.bodies: list[dict[str, Any]] = []
        """Chat requests, in order."""
        self.unknown: list[str] = []
        """Paths that nothing stands at."""
        self.go_on = threading.Event()
        self.reached = threading.Event()
        """Set when a stream begins to wait."""
        self.broken = threading.Event()
        """Set when a client left before its stream ended."""
        self.stats: deque[dict[str, Any]] = deque()
        """Answers of /stats; the last one is repeated with a later time."""
        self.algorithms = ["none", "ngram", "suffix"]
        self.url = ""

    def next_stats(self) -> dict[str, Any]:
        """The next answer of /stats."""
        if len(self.stats) > 1:
            return self.stats.popleft()
        if self.stats:
            self.stats[0] = {**self.stats[0], "time": self.stats[0]["time"] + 1}
            return self.stats[0]
        return stats_at(0)


def stats_at(second: int, *, running: int = 0, waiting: int = 0, done: float = 0.0) -> dict[str, Any]:
    """What /stats answers at a second, after so many seconds of full work.

    Args:
        second: the time.
        running: running requests.
        waiting: waiting requests.
        done: seconds of work so far.
    """
    return {
        "time": 1_700_000_000.0 + second,
        "model": "SmolLM2-135M",
        "algorithm": "suffix",
        "backend": "native",
        "running": running,
        "waiting": waiting,
        "max_running": 32,
        "kv_use": 0.34,
        "tokens": int(210 * done),
        "rounds": int(60 * done),
        "drafted": int(200 * done),
        "tested": [int(60 * done), int(50 * done), int(38 * done), int(22 * done), int(9 * done)],
        "accepted": [int(52 * done), int(40 * done), int(26 * done), int(13 * done), int(4 * done)],
        "cached_tokens": int(90 * done),
        "prompt_tokens": int(150 * done),
        "budget": {"1": 7.4, "2": 5.1, "4": 2.6, "8": 0.9} if done else {},
        "rows": {
            "prompt": int(60 * done),
            "decode": int(60 * done),
            "draft": int(150 * done),
            "wasted": int(50 * done),
        },
        "seconds": {
            "prefill": 0.07 * done,
            "mixed": 0.09 * done,
            "draft": 0.05 * done,
            "verify": 0.55 * done,
            "other": 0.04 * done,
        },
        "one_row_seconds": 0.0104 if done else None,
    }


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        name = "index.html" if self.path == "/" else self.path.removeprefix("/page/")
        file = page_files().get(name)
        if file is not None:
            self._send(200, file.body, {**HEADERS, "Content-Type": file.media_type, "ETag": file.etag})
        elif self.path == "/stats" and self._allowed():
            self._json(200, self.fake.next_stats() | {"algorithms": self.fake.algorithms})
        elif self.path != "/stats":
            self.fake.unknown.append(self.path)
            self._json(404, {"error": {"message": "There is nothing here.", "type": "not_found_error"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        self.fake.bodies.append(body)
        answer = self.fake.answers.popleft() if self.fake.answers else Answer()
        if answer.status != 200:
            self._json(answer.status, {"error": answer.error}, answer.headers)
            return
        try:
            self._stream(answer)
        except OSError:
            self.fake.broken.set()

    def _stream(self, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        parts = [("reasoning_content", pieces) for pieces in answer.reasoning]
        parts += [("content", pieces) for pieces in answer.chunks]
        for number, (name, pieces) in enumerate(parts):
            if number == answer.wait_before:
                self.fake.reached.set()
                self._wait()
            text = "".join(piece for piece, _ in pieces)
            self._event({"choices": [{"index": 0, "delta": {name: text}, "pieces": pieces}]})
            threading.Event().wait(answer.pause)
        if answer.cut:
            return
        if answer.error:
            self._event({"error": answer.error})
        else:
            self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish}]})
            self._event({"choices": [], "usage": USAGE, "timings": answer.timings})
        self.wfile.write(b"data: [DONE]\n\n")

    def _wait(self) -> None:
        """Wait for ``go_on``, and write comments meanwhile: so a client that left is noticed."""
        while not self.fake.go_on.wait(0.02):
            self.wfile.write(b": still here\n\n")

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def _allowed(self) -> bool:
        allowed = self.fake.key is None or self.headers.get("Authorization") == f"Bearer {self.fake.key}"
        if not allowed:
            self._json(401, {"error": {"message": "Send the key as a bearer token.", "type": "authentication_error"}})
        return allowed

    def _json(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser may close a connection at any time."""


@contextmanager
def serving(port: int = 0) -> Iterator[FakeServer]:
    """Run a fake server until the block ends."""
    fake = FakeServer()
    server = _Quiet(("127.0.0.1", port), type("Handler", (_Handler,), {"fake": fake}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield fake
    finally:
        fake.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
