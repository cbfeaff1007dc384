"""EAGLE's static tree against EAGLE-2's dynamic one: the same head, as many nodes, as deep.

    python benchmarks/trees.py --head FOLDER --prompts FILE.jsonl [FILE.jsonl ...] [--model SmolLM2-135M] [--json FILE]

Tells the tokens of a round that each tree brings on every set of prompts, greedily, a tree at a time.  How long that
takes is not measured here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from result import write
from rich.console import Console
from rich.progress import track
from rich.table import Table

from outrider import LLM, SamplingParams, Speculation
from outrider.bench.machine import facts
from outrider.bench.prompts import encode_prompts, selected_prompts
from outrider.heads.loading import read_head

TREES = {"static": "eagle", "dynamic": "eagle2"}
ABREAST = 16
"""Prompts at a time: with more, the wider tree would run out of pages first and draft for fewer of them."""


def served(wishes: argparse.Namespace) -> dict[str, LLM]:
    """The target under each tree."""
    options = {"head": wishes.head, "num_steps": wishes.num_steps, "topk": wishes.topk}
    options |= {"num_draft_tokens": wishes.num_draft_tokens, "min_survival": 0.0}
    plain = LLM(wishes.model, speculation="none")
    return {tree: plain.speculating(Speculation(method, options=options)) for tree, method in TREES.items()}


def measured(arms: dict[str, LLM], files: list[Path], wishes: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Of each set of prompts, what every tree brought."""
    params = SamplingParams(max_tokens=wishes.max_tokens)
    for file in track(files, description="sets of prompts", console=Console(stderr=True)):
        rows = selected_prompts(file, None, None)
        rows = rows[:: max(1, len(rows) // wishes.limit)][: wishes.limit]
        found: dict[str, Any] = {"file": file.name, "prompts": len(rows), "max_tokens": wishes.max_tokens}
        for tree, llm in arms.items():
            prompts = [list(prompt.token_ids) for prompt in encode_prompts(llm.tokenizer, rows, chat=True)]
            groups = [prompts[first : first + ABREAST] for first in range(0, len(prompts), ABREAST)]
            stats = [done.speculation for group in groups for done in llm.generate(group, params)]
            rounds = sum(one.rounds for one in stats)
            found[tree] = {"mean_accepted_length": sum(one.emitted for one in stats) / rounds, "rounds": rounds}
        yield found


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--head", required=True, help="an EAGLE head")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=16, help="prompts of each file, evenly spread")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--num-steps", type=int, default=4)
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--num-draft-tokens", type=int, default=12)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    found = list(measured(served(wishes), wishes.prompts, wishes))
    table = Table("prompts", *(f"{tree} τ" for tree in TREES))
    for each in found:
        lengths = (f"{each[tree]['mean_accepted_length']:.3f}" for tree in TREES)
        table.add_row(f"{each['prompts']} of {each['file']}", *lengths)
    Console().print(table)
    asked = {name: getattr(wishes, name) for name in ("model", "num_steps", "topk", "num_draft_tokens")}
    trained = read_head(wishes.head).training.get("settings", {}).get("tokens")
    write(asked | {"trained_on_tokens": trained, "machine": facts(), "trees": found}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
