"""What the front end and the scheduler take of a round, while many clients stream.

    python benchmarks/serve/front_end.py --model SmolLM2-135M [--streams 32] [--json results/front_end.json]

The server runs in this process, so that the CPU time of its event loop's thread can be read; the clients run in another
one.  *front end* is that CPU time; *scheduler* is the engine's own clock of its first stage.  Both are shares of the
time between two rounds.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from client import Client, closed_loop, completion, run
from figures import median

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write

from outrider import LLM
from outrider.engine.engine import Engine
from outrider.metrics import RoundStats
from outrider.requests.turn import Turn
from outrider.server.desk import Desk
from outrider.server.run import Server, bound
from outrider.server.settings import ServerSettings


class Shares:
    """Notes, for each round with all streams, the seconds of its parts.

    Args:
        engine: observed from now on.
        streams: the requests that must run.
        clock: CPU clock of the event loop's thread.
    """

    def __init__(self, engine: Engine, streams: int, clock: int) -> None:
        self._engine, self._streams, self._clock = engine, streams, clock
        self.rounds: list[dict[str, float]] = []
        self._last: tuple[float, float] | None = None
        engine.observers.append(self)

    def observe(self, turns: Sequence[Turn], stats: RoundStats) -> None:
        """Note a round."""
        now, cpu = time.perf_counter(), time.clock_gettime(self._clock)
        steady = stats.rows.decode == self._streams and not stats.rows.prompt
        if steady and self._last is not None:
            began, before = self._last
            self.rounds.append(
                {"round": now - began, "front_end": cpu - before, "scheduler": self._engine.clock.seconds("schedule")}
            )
        self._last = (now, cpu) if steady else None


def measure(llm: LLM, streams: int, max_tokens: int, drafts: bool) -> dict[str, Any]:
    """Stream to all clients at once, and return the medians and means of the rounds."""
    ready: Queue[str] = Queue()
    settings = ServerSettings(port=0, drain_seconds=5.0)
    server = Server(Desk(llm, settings), ready.put)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound(settings)]})
    thread.start()
    address = ready.get()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    shares = llm.driver.between_rounds(lambda engine: Shares(engine, streams, clock))
    command = [sys.executable, __file__, "--url", address, "--streams", str(streams), "--max-tokens", str(max_tokens)]
    subprocess.run([*command, *(["--drafts"] if drafts else [])], check=True)
    server.drain()
    thread.join()
    llm.driver.between_rounds(lambda engine: engine.observers.clear())
    total = {name: sum(one[name] for one in shares.rounds) for name in ("round", "front_end", "scheduler")}
    return {
        "rounds": len(shares.rounds),
        "round_ms": 1e3 * median([one["round"] for one in shares.rounds]),
        "front_end": total["front_end"] / total["round"],
        "scheduler": total["scheduler"] / total["round"],
        "both": (total["front_end"] + total["scheduler"]) / total["round"],
    }


def ask(address: str, streams: int, max_tokens: int, drafts: bool) -> None:
    """Stream from all clients."""
    wish = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "speculation": {"enabled": drafts}}
    requests = [completion(f"Tell me story number {number}, about the sea.", **wish) for number in range(streams)]
    answers = run(closed_loop(Client(address), requests, streams))
    assert all(answer.status == 200 for answer in answers), [answer.status for answer in answers]


def main() -> int:
    """Measure plain and speculative decoding, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--drafts", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.url:
        ask(told.url, told.streams, told.max_tokens, told.drafts)
        return 0
    with LLM(told.model, cache={"contexts": 16}) as llm:
        found = {
            name: measure(llm, told.streams, told.max_tokens, drafts)
            for name, drafts in (("plain", False), ("speculative", True))
        }
    result = {
        "command": shlex.join(["python", "benchmarks/serve/front_end.py", *sys.argv[1:]]),
        "model": Path(told.model).name,
        "streams": told.streams,
        **found,
    }
    write(result, told.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
