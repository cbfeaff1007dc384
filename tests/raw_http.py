"""HTTP by hand, for clients that misbehave."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def connected(port: int, seconds: float = 10.0) -> socket.socket:
    """A connection to a server of this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def request(path: str, body: Any = None, *headers: str, method: str = "POST", host: str = "localhost") -> bytes:
    """A request's bytes; a body that is no bytes is written as JSON."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(raw)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + raw


def read_all(connection: socket.socket) -> bytes:
    """All bytes to the end of the connection; a reset is an end, too."""
    parts = []
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def asked(port: int, sent: bytes, seconds: float = 10.0) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to bytes on a connection that the server closes."""
    with connected(port, seconds) as connection:
        with suppress(ConnectionError):
            connection.sendall(sent)
        return parsed(read_all(connection))


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with small names, and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, value in fields.items()}, body


def reset(connection: socket.socket) -> None:
    """Close a connection with RST, as a client does whose machine forgot it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def soon(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether something holds, now or within some seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def error_of(body: bytes | str) -> dict[str, Any]:
    """The error of an error body, which has all of OpenAI's fields and no more."""
    told = json.loads(body)
    assert set(told) == {"error"}
    assert set(told["error"]) == {"message", "type", "param", "code"}
    message = told["error"]["message"]
    assert message
    assert "Traceback" not in message
    assert "/site-packages" not in message
    assert ".py" not in message
    return told["error"]
