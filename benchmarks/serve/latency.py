"""What a user waits for: gaps between tokens, time to the first token, and what the server costs over the library.

    python benchmarks/serve/latency.py --model SmolLM2-135M [--prompts FILE.jsonl] [--json results/latency.json]

Three measurements, each of every server in turns:

* ``gaps``: the times between texts of streams that decode steadily, first alone, then while long prompts arrive;
* ``first_token``: a prompt of 2,000 tokens that is new, and then one that begins with 1,900 of its tokens;
* ``library``: one client, the same prompts through the server and through ``LLM`` in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import servers
import workload
from client import Answer, Client, Request, completion, open_loop, run
from figures import median, percentiles, problems
from rich.console import Console
from servers import Server
from throughput import shown

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "peers")]  # the scripts' common parts

from compare import Engine
from result import write_file

from outrider.models.loading import find, open_model

PARTS: Final = ("gaps", "first_token", "library")
WORKER: Final = Path(__file__).parents[1] / "peers" / "outrider_worker.py"
_STEADY: Final = 20
"""Tokens of a steady stream's prompt."""
_LEAD_S: Final = 1.0
"""All streams decode after this time."""
_NEW: Final = 100
"""Tokens of a cached prompt that are not cached."""


def main() -> int:
    """Measure, print the figures, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_arguments(parser)
    workload.add_arguments(parser)
    parser.set_defaults(context=4096, limit=8)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--streams", type=int, default=4, help="steady streams")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for which they are watched")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two arriving prompts")
    parser.add_argument("--long", type=int, default=2000, help="tokens of a long prompt")
    parser.add_argument("--max-tokens", type=int, default=128, help="output tokens beside the library")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    tokenizer = open_model(wishes.model).tokenizer
    texts, prompts = workload.Texts(tokenizer, wishes.prompts), workload.chat_prompts(wishes, tokenizer)
    parts, fresh = wishes.parts.split(","), count()  # no piece of text is sent twice
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/serve/latency.py", *map(shown, sys.argv[1:])]),
        "model": Path(wishes.model).name,
        "builds": servers.builds(wishes),
        "prompts": workload.prompt_facts(wishes, prompts),
    }
    with servers.running(servers.chosen_arms(wishes, wishes.streams + 2)) as up:
        result["arms"] = {server.arm.name: server.arm.facts() for server in up}
        for server in up:  # the first passes allocate
            run(ask(server, completion(texts.piece(next(fresh), wishes.long), max_tokens=8, temperature=0)))
        result["idle_cores"] = servers.idle_cpu(up)
        if "gaps" in parts:
            result["gaps"] = gaps(wishes, up, texts, fresh)
        if "first_token" in parts:
            result["first_token"] = first_token(wishes, up, texts, fresh)
        if "library" in parts:
            result["library"] = beside_library(wishes, up, prompts)
    Console().print_json(json.dumps({part: summary(result[part]) for part in parts}))
    write_file(result, wishes.json)
    return 0


def summary(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part without its single samples."""
    return {arm: {name: told for name, told in figures.items() if name != "samples"} for arm, figures in part.items()}


async def ask(server: Server, *requests: Request) -> list[Answer]:
    """Send requests one after the other."""
    client = Client(server.base, server.arm.extra)
    answers = [await client.send(request) for request in requests]
    client.close()
    if bad := problems(answers):
        raise SystemExit(f"{server.arm.name} failed: {'; '.join(bad)}")
    return answers


def gaps(
    wishes: argparse.Namespace, up: Sequence[Server], texts: workload.Texts, fresh: Iterator[int]
) -> dict[str, Any]:
    """Milliseconds between two texts of a steady stream, idle and while long prompts arrive."""
    found: dict[str, Any] = {}
    for server in up:
        idle, _, _ = run(watch(wishes, server, texts, fresh, []))
        begin, end = _LEAD_S, wishes.seconds - wishes.every
        times = [begin + number * wishes.every for number in range(int((end - begin) / wishes.every) + 1)]
        busy, window, arrived = run(watch(wishes, server, texts, fresh, times))
        beside = [gap for at, gap in busy if window[0] <= at <= window[1]]
        found[server.arm.name] = {
            "idle_ms": percentiles([gap for _, gap in idle], 1e3),
            "busy_ms": percentiles(beside, 1e3),
            "greatest_busy_ms": max(beside, default=0.0) * 1e3,
            "long_prompts": len(times),
            "their_first_token_ms": percentiles([one.first_token_s for one in arrived if one.first_token_s], 1e3),
        }
    return found


async def watch(
    wishes: argparse.Namespace, server: Server, texts: workload.Texts, fresh: Iterator[int], times: Sequence[float]
) -> tuple[list[tuple[float, float]], tuple[float, float], list[Answer]]:
    """Let streams decode, and long prompts arrive at the given times.

    Returns:
        All gaps with their times, the span in which long prompts were there, and their answers.
    """
    client = Client(server.base, server.arm.extra)
    room = {"max_tokens": wishes.context - _STEADY - 1, "ignore_eos": True, "temperature": 0}
    streams = [completion(texts.piece(next(fresh), _STEADY), **room) for _ in range(wishes.streams)]
    steady = [Request(one.path, one.body, seconds=wishes.seconds) for one in streams]
    long = [completion(texts.piece(next(fresh), wishes.long), max_tokens=1, temperature=0) for _ in times]
    everything = await open_loop(client, steady + long, [0.0] * len(steady) + list(times))
    client.close()
    watched, arrived = everything[: len(steady)], everything[len(steady) :]
    if bad := problems([answer for answer in everything if not answer.hung_up]):
        raise SystemExit(f"{server.arm.name} failed: {'; '.join(bad)}")
    begun = max(answer.pieces[0][0] for answer in watched)
    span = (min(one.sent for one in arrived), max(one.ended for one in arrived)) if arrived else (begun, float("inf"))
    return [gap for answer in watched for gap in answer.gaps if gap[0] > begun], span, arrived


def first_token(
    wishes: argparse.Namespace, up: Sequence[Server], texts: workload.Texts, fresh: Iterator[int]
) -> dict[str, Any]:
    """Milliseconds to the first token of a long prompt, new and with all but 100 of its tokens cached."""
    samples: dict[str, list[dict[str, Any]]] = {server.arm.name: [] for server in up}
    for turn in range(wishes.repeat):
        long = texts.piece(next(fresh), wishes.long)
        late = long[:-_NEW] + texts.piece(next(fresh), _NEW)
        for server in up if turn % 2 == 0 else up[::-1]:
            cold, warm = run(ask(server, *(completion(ids, max_tokens=1, temperature=0) for ids in (long, late))))
            samples[server.arm.name].append(
                {
                    "cold_ms": 1e3 * (cold.first_token_s or cold.ended - cold.sent),
                    "cached_ms": 1e3 * (warm.first_token_s or warm.ended - warm.sent),
                    "cached_tokens": [cold.cached_tokens, warm.cached_tokens],
                }
            )
    return {
        arm: {**{key: median([one[key] for one in mine]) for key in ("cold_ms", "cached_ms")}, "samples": mine}
        for arm, mine in samples.items()
    }


def beside_library(
    wishes: argparse.Namespace, up: Sequence[Server], prompts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """One client's tokens per second through the servers of Outrider, over the library's."""
    arms = {"outrider plain": "plain", "outrider speculative": "speculative"}
    ours = [server for server in up if server.arm.name in arms]
    if not ours:
        return {}
    methods = json.dumps({"speculative": {"method": wishes.algorithm}})
    options = ["--target", str(find(wishes.model)[0]), "--threads", str(wishes.threads), "--methods", methods]
    library = Engine("the library", [sys.executable, str(WORKER), *options])
    samples: dict[str, list[dict[str, Any]]] = {server.arm.name: [] for server in ours}
    for turn, ids in enumerate([prompts[0], *prompts]):
        for server in ours:
            told = _pair(wishes, server, library, arms[server.arm.name], (turn, ids))
            if turn:  # the first pair allocates
                samples[server.arm.name].append(told)
    library.close()
    return {arm: {**_ratios(mine), "samples": mine} for arm, mine in samples.items()}


def _pair(
    wishes: argparse.Namespace, server: Server, library: Engine, arm: str, prompt: tuple[int, Sequence[int]]
) -> dict[str, Any]:
    """One prompt through both; which goes first changes from prompt to prompt."""
    turn, ids = prompt
    told: dict[str, Any] = {}
    for place in ("server", "library") if turn % 2 else ("library", "server"):
        if place == "library":
            alone = library.ask({"token_ids": list(ids), "max_tokens": wishes.max_tokens, "arm": arm})
            told |= {"library_s": alone["whole_s"], "library_tokens": alone["tokens"]}
        else:
            options = {"max_tokens": wishes.max_tokens, "temperature": 0, **server.arm.alone(f"beside {turn}")}
            (answer,) = run(ask(server, completion(ids, **options)))
            told |= {"server_s": answer.ended - answer.sent, "server_tokens": answer.tokens}
    return told


def _ratios(samples: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Server over library, as speeds."""
    return {
        "server_over_library": median([one["library_s"] / one["server_s"] for one in samples]),
        "server_tokens_per_s": median([one["server_tokens"] / one["server_s"] for one in samples]),
    }


if __name__ == "__main__":
    raise SystemExit(main())
