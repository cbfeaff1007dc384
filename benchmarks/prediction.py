"""What a prediction saves when a model rewrites a file with an edit.

    python benchmarks/prediction.py [--model Qwen2.5-Coder-0.5B] [--json results/prediction.json]

The file is a part of Python's own library.  Each edit is asked with lookup alone (the prompt holds the file), and
with the file as the prediction.  ``rounds`` are passes of the target that decode; at temperature 0 they depend on
nothing but the model, and plain decoding takes one for each token but the first.  All arms must give the same text.
"""

from __future__ import annotations

import argparse
import queue
import sys
from pathlib import Path
from typing import Any

from result import write
from rich.console import Console
from rich.table import Table

from outrider import LLM, SamplingParams

LINES = 200
EDITS = (
    "Rename the attribute maxsize to capacity everywhere.",
    "Add a docstring to every method that has none.",
    "Rename the class Queue to BoundedQueue everywhere.",
)
METHODS = ("suffix", "ngram")


def asked(file: str, edit: str) -> list[dict[str, str]]:
    """The conversation that asks for an edit."""
    told = f"{edit} Answer with the whole file, and with nothing else.\n\n{file}"
    return [{"role": "user", "content": told}]


def measure(llm: LLM, file: str, edit: str, tokens: int) -> dict[str, Any]:
    """Rounds of every arm for one edit."""
    wish = SamplingParams(max_tokens=tokens)
    arms: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        arms |= {f"{method}": {"algorithm": method}}
        arms |= {f"{method} + prediction": {"algorithm": method, "prediction": file}}
    done = {name: llm.chat(asked(file, edit), wish, **options) for name, options in arms.items()}
    texts = {one.token_ids for one in done.values()}
    assert len(texts) == 1, "an arm changed the text"
    tokens = len(texts.pop())
    return {
        "edit": edit,
        "output_tokens": tokens,
        "rounds": {"none": tokens - 1} | {name: one.speculation.rounds for name, one in done.items()},
        "acceptance_rate": {name: round(one.speculation.acceptance_rate, 3) for name, one in done.items()},
    }


def main() -> int:
    """Measure, print a table, end with one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen2.5-Coder-0.5B")
    parser.add_argument("--tokens", type=int, default=1800)
    parser.add_argument("--json", type=Path)
    wishes = parser.parse_args()
    llm = LLM(wishes.model, speculation=METHODS[0], cache={"rows": 16384})
    source = Path(queue.__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    rows = [measure(llm, "".join(source[:LINES]), edit, wishes.tokens) for edit in EDITS]
    table = Table("edit", "tokens", *rows[0]["rounds"])
    for row in rows:
        table.add_row(row["edit"], str(row["output_tokens"]), *map(str, row["rounds"].values()))
    Console().print(table)
    write({"model": wishes.model, "file_lines": LINES, "edits": rows}, wishes.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
