"""Tokens per second of servers with 1, 4, 8 and 16 clients, in turns: Outrider plain and speculative, llama-server.

    python benchmarks/serve/throughput.py --model SmolLM2-135M [--prompts FILE.jsonl] [--json results/throughput.json]

Every server gets the same token ids, greedy, with the same maximum.  Each client sends its next request as soon as its
last one has ended.  No request reuses the rows of another: Outrider's have salts of their own, llama-server's prompt
cache is off.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import servers
import workload
from client import Request, closed_loop, completion, run
from figures import median, timed
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write_file

from outrider.models.loading import open_model


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_arguments(parser)
    workload.add_arguments(parser)
    parser.add_argument("--clients", type=numbers, default=[1, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=4, help="requests of each client in a round, at least 8 in all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    prompts = workload.chat_prompts(wishes, open_model(wishes.model).tokenizer)
    samples, arms, idle = measure(wishes, prompts)
    result = {
        "command": shlex.join(["python", "benchmarks/serve/throughput.py", *map(shown, sys.argv[1:])]),
        "model": Path(wishes.model).name,
        "builds": servers.builds(wishes),
        "prompts": workload.prompt_facts(wishes, prompts),
        "max_tokens": wishes.max_tokens,
        "arms": arms,
        "idle_cores": idle,
        "medians": summarise(samples),
        "samples": samples,
    }
    show(result["medians"])
    write_file(result, wishes.json)
    return 1 if any(sample["errors"] for sample in samples) else 0


def numbers(text: str) -> list[int]:
    """Whole numbers between commas."""
    return [int(part) for part in text.split(",")]


def shown(argument: str) -> str:
    """An argument for results: files without their folders."""
    return Path(argument).name if argument.startswith(("/", "~", ".")) else argument


def measure(
    wishes: argparse.Namespace, prompts: Sequence[Sequence[int]]
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, float]]:
    """Every round goes through all servers before the next one begins."""
    samples: list[dict[str, Any]] = []
    arms: dict[str, Any] = {}
    idle: dict[str, float] = {}
    for clients in wishes.clients:
        with servers.running(servers.chosen_arms(wishes, clients)) as up:
            arms |= {server.arm.name: server.arm.facts() for server in up}
            for turn in range(-1, wishes.rounds):
                found = one_round(wishes, prompts, clients, turn, up)
                if turn < 0:  # the first passes allocate
                    idle |= servers.idle_cpu(up)
                else:
                    samples += found
    return samples, arms, idle


def one_round(
    wishes: argparse.Namespace,
    prompts: Sequence[Sequence[int]],
    clients: int,
    turn: int,
    up: Sequence[servers.Server],
) -> list[dict[str, Any]]:
    """The same requests through every server; every other round in reverse order."""
    texts: dict[str, list[str]] = {}
    found = []
    for server in up if turn % 2 == 0 else up[::-1]:
        sent = requests(wishes, prompts, clients, turn, server.arm)
        answers, told = run(timed(server, lambda client, sent=sent: closed_loop(client, sent, clients)))
        texts[server.arm.name] = [answer.text for answer in answers]
        found.append({"clients": clients, "round": turn, "arm": server.arm.name, **told})
    plain = texts.get("outrider plain", [])
    for sample in found:
        sample["same_as_plain"] = sum(map(str.__eq__, texts[sample["arm"]], plain))
    return found


def requests(
    wishes: argparse.Namespace, prompts: Sequence[Sequence[int]], clients: int, turn: int, arm: servers.Arm
) -> list[Request]:
    """A round's requests; none may reuse the rows of another."""
    count = max(8, clients * wishes.requests)
    begin = (turn + 1) * count % len(prompts)
    options = {"max_tokens": wishes.max_tokens, "temperature": 0}
    return [
        completion(prompt, **options, **arm.alone(f"{clients} clients, round {turn}, request {number}"))
        for number, prompt in enumerate(islice(cycle(prompts), begin, begin + count))
    ]


def summarise(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds, and the ratio to llama-server round by round."""
    rows = []
    for clients in dict.fromkeys(sample["clients"] for sample in samples):
        here = [sample for sample in samples if sample["clients"] == clients]
        theirs = {s["round"]: s["tokens_per_s"] for s in here if s["arm"].startswith("llama-server")}
        for arm in dict.fromkeys(sample["arm"] for sample in here):
            mine = [sample for sample in here if sample["arm"] == arm]
            ratios = [s["tokens_per_s"] / theirs[s["round"]] for s in mine if theirs.get(s["round"])]
            rows.append(
                {
                    "clients": clients,
                    "arm": arm,
                    "tokens_per_s": median([s["tokens_per_s"] for s in mine]),
                    "ratio_to_llama": median(ratios),
                    "first_token_ms": median([s["first_token_ms"]["p50"] for s in mine]),
                    "client_share_of_a_core": median([s["client_cpu_s"] / s["seconds"] for s in mine]),
                    "same_as_plain": f"{sum(s['same_as_plain'] for s in mine)}/{sum(s['requests'] for s in mine)}",
                    "errors": sorted({error for s in mine for error in s["errors"]}),
                }
            )
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table("clients", "server", "tokens/s", "÷ llama-server", "first token, ms", "texts as plain", "errors")
    for row in rows:
        cells = [f"{row[key]:.{digits}f}" if row[key] is not None else "–" for key, digits in _FIGURES]
        table.add_row(str(row["clients"]), row["arm"], *cells, row["same_as_plain"], "; ".join(row["errors"])[:60])
    Console(width=140).print(table)


_FIGURES = (("tokens_per_s", 1), ("ratio_to_llama", 2), ("first_token_ms", 0))


if __name__ == "__main__":
    raise SystemExit(main())
