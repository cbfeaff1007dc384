"""The share of prompt tokens that come from the prefix cache on a recorded trace, with and without speculation.

    python benchmarks/serve/prefix_hits.py --model SmolLM2-135M --trace FILE.jsonl [--json results/prefix_hits.json]

The trace has JSON lines with ``t_s``, ``input_tokens``, ``output_tokens`` and ``prefix_block_ids``, in blocks of 512
tokens, as Mooncake's traces do.  ``--scale`` makes one token of so many recorded ones; a block should keep at least the
16 tokens of a page.  Equal blocks become equal pieces of real text, different blocks different ones.  Requests keep
their order: clients send them one after the other, or ``--speed`` keeps their times, compressed.  ``possible`` is the
share that a cache without limits would hold if every request waited for the one before.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import servers
import workload
from client import Answer, Client, Request, closed_loop, completion, open_loop, run
from figures import timed
from rich.console import Console
from rich.table import Table
from throughput import shown

sys.path.insert(0, str(Path(__file__).parents[1]))  # the scripts' common part lies a folder up

from result import write_file

from outrider.models.loading import open_model


def main() -> int:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_arguments(parser)
    parser.set_defaults(servers="plain,speculative", context=8192)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--texts", type=Path, help="a prompt file that the blocks' text comes from")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--scale", type=int, default=16, help="recorded tokens for one token; a power of 2 up to 512")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--speed", type=float, help="keep the recorded times, so many times as fast")
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    recorded = workload.read_trace(wishes.trace, wishes.requests)
    texts = workload.Texts(open_model(wishes.model).tokenizer, wishes.texts)
    if (blocks := len({block for one in recorded for block in one.blocks})) > texts.distinct:
        raise SystemExit(f"the trace has {blocks} blocks, the texts only {texts.distinct} tokens; give more --texts")
    prompts = [workload.scaled_prompt(one, texts, wishes.scale) for one in recorded]
    requests = [
        completion(prompt, max_tokens=max(1, one.output_tokens // wishes.scale), temperature=0, ignore_eos=True)
        for prompt, one in zip(prompts, recorded, strict=True)
    ]
    arms, rows = measure(wishes, requests, [one.at_s for one in recorded])
    total = sum(map(len, prompts))
    result = {
        "command": shlex.join(["python", "benchmarks/serve/prefix_hits.py", *map(shown, sys.argv[1:])]),
        "model": Path(wishes.model).name,
        "trace": {"file": wishes.trace.name, "requests": len(prompts), "scale": wishes.scale},
        "prompt_tokens": {"total": total, "most": max(map(len, prompts))},
        "possible": workload.most_shared(prompts) / total,
        "arms": arms,
        "rows": [{"hit_rate": row["cached_tokens"] / total, **row} for row in rows],
    }
    show(result)
    write_file(result, wishes.json)
    return 1 if any(row["errors"] for row in rows) else 0


def measure(
    wishes: argparse.Namespace, requests: Sequence[Request], times: Sequence[float]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole trace through each server, which starts with an empty cache and runs alone."""

    async def send(client: Client) -> list[Answer]:
        if wishes.speed:
            return await open_loop(client, requests, [at / wishes.speed for at in times])
        return await closed_loop(client, requests, wishes.clients)

    arms, rows = {}, []
    for arm in servers.chosen_arms(wishes, wishes.clients):
        with servers.Server(arm) as server:
            answers, told = run(timed(server, send))
        arms[arm.name] = arm.facts()
        rows.append({"arm": arm.name, "cached_tokens": sum(answer.cached_tokens for answer in answers), **told})
    return arms, rows


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table("server", "hit rate", "seconds", "first token, ms (median)", "errors")
    for row in result["rows"]:
        first = row["first_token_ms"]["p50"]
        cells = [f"{row['hit_rate']:.1%}", f"{row['seconds']:.1f}", "–" if first is None else f"{first:.0f}"]
        table.add_row(row["arm"], *cells, "; ".join(row["errors"])[:60])
    console = Console(width=140)
    console.print(table)
    console.print(f"possible: {result['possible']:.1%} of {result['prompt_tokens']['total']} prompt tokens")


if __name__ == "__main__":
    raise SystemExit(main())
