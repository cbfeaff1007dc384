"""A real server on a free port, in a thread of this process, with a tiny model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx

from outrider import LLM
from outrider.server.desk import Desk
from outrider.server.run import Server, bound
from outrider.server.settings import ServerSettings


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    desk: Desk
    llm: LLM
    server: Server
    thread: threading.Thread

    def client(self, **options: Any) -> httpx.Client:
        """A client of it, which ignores proxies."""
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, **options)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rsplit(":", 1)[1])

    def idle(self) -> bool:
        """Whether nothing is open, in the engine either; checks the pages too."""

        def look(engine: Any) -> bool:
            engine.pool.check()
            return not (engine.scheduler.running or engine.scheduler.waiting)

        return self.llm.driver.between_rounds(look) and not self.desk.open


@contextmanager
def serving(llm: LLM, **settings: Any) -> Iterator[Served]:
    """Serve a model; at the end the server drains, and must end within seconds."""
    config = ServerSettings(**{"port": 0, "drain_seconds": 5.0} | settings)
    ready: Queue[str] = Queue()
    desk = Desk(llm, config)
    server = Server(desk, ready.put)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound(config)]}, daemon=True)
    thread.start()
    try:
        yield Served(ready.get(timeout=20), desk, llm, server, thread)
    finally:
        if not desk.draining:
            server.drain()
        thread.join(20)
        desk.close()
        assert not thread.is_alive()


def tiny_llm(folder: Path, **options: Any) -> LLM:
    """The tiny model of a folder."""
    from tiny_folder import make_folder

    return LLM(make_folder(folder), **{"context_length": 512, "backend": "hf"} | options)
