"""What ``accelerate launch`` tells each of the processes it starts."""

from __future__ import annotations

import socket


def environments(count: int) -> list[dict[str, str]]:
    """The variables of each of so many processes on one machine's CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
