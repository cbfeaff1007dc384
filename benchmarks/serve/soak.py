"""Thousands of random requests against a server that the script starts; each answer must be the library's, bit for bit.

    python benchmarks/serve/soak.py --model SmolLM2-135M [--requests 10000] [--json results/soak.json]

The answers of ``--distinct`` requests are computed first by the library, one at a time and without speculation.  Then
clients send them over and over, streamed or whole, with and without speculation; of all requests one in twenty hangs up
at some point, and one in twenty is malformed and must get a status of 4xx.  At the end nothing may run, memory must not
have grown, and the server must finish open streams after SIGTERM and end with code 0.  The exit code is 1 if anything
of this fails.  The script talks to 127.0.0.1 only, and stops after ``--requests`` or ``--minutes``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import soak_cases as cases
from client import Answer, Client, Request, completion, run
from figures import slope
from rich.console import Console
from rich.progress import track
from servers import Arm, Server
from soak_answers import differences, of_wire, solo
from throughput import shown

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write_file

from outrider import LLM, __version__
from outrider.prompts import read

Kind = Literal["kept", "cancelled", "malformed"]
_SAMPLE_S: Final = 0.5
"""Between two looks at the server's memory."""
_IDLE_S: Final = 20.0
"""Cancelled requests must be gone after this time."""
_MOST_SHOWN: Final = 20
"""Failures that the result tells in full."""
_POINTS: Final = 100
"""Samples of memory that the result tells."""
_LAST: Final = 4
"""Streams that are open when the server is asked to end."""


@dataclass
class Tally:
    """What has happened so far; the clients write it."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    """Requests that had ended, and the server's bytes."""

    def fail(self, kind: str, request: Request, told: Any) -> None:
        """Book a failure."""
        self.counts[f"failed: {kind}"] += 1
        if len(self.failures) < _MOST_SHOWN:
            body = request.body if isinstance(request.body, Mapping) else repr(request.body)
            self.failures.append({"kind": kind, "path": request.path, "body": body, "told": told})


def main() -> int:
    """Soak, print what happened, write the JSON."""
    wishes = _wishes()
    dice = random.Random(wishes.seed)
    context, pool = solo_answers(wishes, dice)
    pages = ["--context-length", str(wishes.context), "--cache-rows", str(2 * wishes.context)]
    options = ["--model", wishes.model, "--port", "0", *pages, *wishes.outrider_args]
    arm = Arm("outrider", (sys.executable, "-m", "outrider", "serve", *options), f"outrider {__version__}")
    tally = Tally()
    with Server(arm) as server:
        seconds = run(soak(wishes, dice, server, pool, context, tally))
        run(drain(server, pool, tally))
        code, log = server.stop(), server.log()
    if code != 0:
        tally.counts["failed: exit code"] += 1
    growth = judged_growth(tally.memory, wishes.requests)
    if growth["grown_mib"] > wishes.growth_mib:
        tally.counts["failed: memory grew"] += 1
    lost = wishes.requests - tally.counts["ended"]
    if lost:
        tally.counts["failed: not sent or lost"] += lost
    passed = not any(name.startswith("failed") for name in tally.counts)
    result = {
        "command": shlex.join(["python", "benchmarks/serve/soak.py", *map(shown, sys.argv[1:])]),
        "server": arm.facts(),
        "passed": passed,
        "seconds": seconds,
        "exit_code": code,
        "counts": dict(sorted(tally.counts.items())),
        "memory": growth,
        "failures": tally.failures,
        "log_end": "" if passed else log[-4000:],
    }
    Console().print({key: result[key] for key in ("passed", "seconds", "exit_code", "counts", "memory")})
    write_file(result, wishes.json)
    return 0 if passed else 1


def _wishes() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a .gguf file, or a name in the models folder")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--distinct", type=int, default=200, help="requests whose answers are computed beforehand")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after that time")
    parser.add_argument("--cancelled", type=float, default=0.05, help="share of requests that hang up")
    parser.add_argument("--malformed", type=float, default=0.05, help="share of requests that are malformed")
    parser.add_argument("--growth-mib", type=float, default=48.0, help="most growth of memory after the warm-up")
    parser.add_argument("--context", type=int, default=2048, help="a small one: the KV cache is soon full, then evicts")
    parser.add_argument("--outrider-args", type=shlex.split, default=[], help="more options of outrider serve")
    parser.add_argument("--prompts", type=Path, help="a prompt file whose texts prompts begin with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def solo_answers(
    wishes: argparse.Namespace, dice: random.Random
) -> tuple[int, list[tuple[cases.Case, dict[str, Any]]]]:
    """Draw requests and have the library answer each alone.

    Returns:
        The model's context length, and the requests with their answers.
    """
    texts = ["\n\n".join(turn["content"] for turn in prompt.turns) for prompt in read(wishes.prompts)]
    with LLM(wishes.model, speculation=None, context_length=wishes.context, cache={"prefix_cache": False}) as llm:
        assert llm.tokenizer is not None
        context, vocabulary = llm.engine.target.context_length, llm.tokenizer.vocab_size
        drawn = [cases.make_case(dice, texts, vocabulary) for _ in range(wishes.distinct)]
        console = Console(stderr=True)
        return context, [(one, solo(llm, one)) for one in track(drawn, "the library's answers", console=console)]


async def soak(
    wishes: argparse.Namespace,
    dice: random.Random,
    server: Server,
    pool: Sequence[tuple[cases.Case, dict[str, Any]]],
    context: int,
    tally: Tally,
) -> float:
    """Send everything, and wait until the server has nothing to do.

    Returns:
        The seconds that it took.
    """
    client = Client(server.base)
    models = await client.get("/v1/models")
    algorithms = models["data"][0]["algorithms"]
    begun = time.perf_counter()
    deadline = begun + 60 * wishes.minutes
    plan = planned(wishes, dice, pool, context, algorithms)

    async def work() -> None:
        for kind, request, known in plan:
            if time.perf_counter() > deadline:
                return
            judge(tally, kind, request, await client.send(request), known)
            tally.counts["ended"] += 1

    watching = asyncio.ensure_future(_watch(server, tally))
    await asyncio.gather(*(work() for _ in range(wishes.clients)))
    seconds = time.perf_counter() - begun
    await _until_idle(client, tally)
    watching.cancel()
    client.close()
    return seconds


def planned(
    wishes: argparse.Namespace,
    dice: random.Random,
    pool: Sequence[tuple[cases.Case, dict[str, Any]]],
    context: int,
    algorithms: Sequence[str],
) -> Iterator[tuple[Kind, Request, tuple[cases.Case, dict[str, Any]] | None]]:
    """All requests in order, each with its kind and, if it is kept, its case and the answer that it must get."""
    for _ in range(wishes.requests):
        share = dice.random()
        known = dice.choice(pool)
        if share < wishes.malformed:
            yield "malformed", cases.malformed(dice, context), None
        elif share < wishes.malformed + wishes.cancelled:
            yield "cancelled", cases.cancelled(dice, cases.sending(dice, known[0], algorithms)), None
        else:
            yield "kept", cases.sending(dice, known[0], algorithms), known


def judge(
    tally: Tally, kind: Kind, request: Request, answer: Answer, known: tuple[cases.Case, dict[str, Any]] | None
) -> None:
    """Compare what came back with what must."""
    tally.counts[kind] += 1
    if kind == "malformed":
        if not 400 <= answer.status < 500:
            tally.fail("a malformed request was not refused", request, f"status {answer.status}: {answer.body[:300]!r}")
    elif kind == "cancelled":
        tally.counts["hung up"] += answer.hung_up
        if not (answer.hung_up or answer.whole):
            tally.fail("a cancelled request failed", request, _said(answer))
    elif known is None or not answer.whole:
        tally.fail("no whole answer", request, _said(answer))
    elif differing := differences(known[1], found := of_wire(answer, known[0])):
        tally.fail("another answer", request, {"differing": differing, "expected": known[1], "found": found})


def _said(answer: Answer) -> str:
    return answer.failure or str(answer.error) or f"status {answer.status}: {answer.body[:300]!r}"


async def _watch(server: Server, tally: Tally) -> None:
    while True:
        if (size := server.memory_bytes) is not None:
            tally.memory.append((tally.counts["ended"], size))
        await asyncio.sleep(_SAMPLE_S)


async def _until_idle(client: Client, tally: Tally) -> None:
    """Wait until the server says that nothing runs and nothing waits."""
    deadline = time.perf_counter() + _IDLE_S
    while time.perf_counter() < deadline:
        stats = await client.get("/stats")
        if stats is not None and stats["running"] == stats["waiting"] == 0:
            return
        await asyncio.sleep(0.1)
    tally.fail("the server is not idle", Request("/stats", None), stats)


async def drain(server: Server, pool: Sequence[tuple[cases.Case, dict[str, Any]]], tally: Tally) -> None:
    """Ask the server to end while streams are open; each of them must be whole."""
    client = Client(server.base)
    requests = [
        completion("Once upon a time", max_tokens=96, temperature=0, ignore_eos=True, cache_salt=f"drain {number}")
        for number in range(_LAST)
    ]
    open_streams = [asyncio.ensure_future(client.send(request)) for request in requests]
    await asyncio.sleep(0.3)
    server.terminate()
    answers = await asyncio.gather(*open_streams)
    for request, answer in zip(requests, answers, strict=True):
        if not answer.whole or answer.tokens != 96 or answer.text != answers[0].text:
            tally.fail("a stream was not finished after SIGTERM", request, _said(answer))
    client.close()


def judged_growth(memory: Sequence[tuple[int, int]], requests: int) -> dict[str, Any]:
    """How memory grew after the warm-up, the first half of the requests.

    Args:
        memory: ended requests and bytes.
        requests: all requests.
    """
    late = [(ended, size) for ended, size in memory if ended >= requests / 2]
    each = slope([ended for ended, _ in late], [size for _, size in late])
    span = late[-1][0] - late[0][0] if late else 0
    sizes = [size / 2**20 for _, size in memory] or [0.0]
    return {
        "samples": len(memory),
        "bytes_per_request": each,
        "grown_mib": each * span / 2**20,
        "begin_mib": sizes[0],
        "most_mib": max(sizes),
        "end_mib": sizes[-1],
        "series_mib": [(ended, round(size / 2**20, 1)) for ended, size in memory[:: len(memory) // _POINTS + 1]],
    }


if __name__ == "__main__":
    raise SystemExit(main())
