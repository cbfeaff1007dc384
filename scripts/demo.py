"""The demo: one text, plain and speculative, side by side in figures."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider import LLM, Choice, SamplingParams

MODEL = "SmolLM2-135M"
QUESTION = """Add a docstring to each function and repeat the whole code:

def area_of_rectangle(width, height):
    return width * height

def area_of_triangle(base, height):
    return base * height / 2

def area_of_circle(radius):
    return 3.14159 * radius * radius
"""
PARAMS = SamplingParams(max_tokens=192)


@dataclass(frozen=True)
class Run:
    """One way of decoding, measured."""

    choice: Choice
    tokens_per_second: float


def run(llm: LLM, prompt: list[int], console: Console, *, show: bool) -> Run:
    """Complete the prompt, streaming the text; accepted drafts are shown in green."""
    before = llm.engine.seconds.copy()
    choice: Choice | None = None
    stream = llm.tokenizer.stream() if llm.tokenizer else None
    for chunk in llm.stream(prompt, PARAMS):
        choice = chunk.choice or choice
        if show and stream is not None:
            for place, token in enumerate(chunk.token_ids):
                style = "green" if place < chunk.drafted else ""
                console.print(Text(stream.push(token), style=style), end="")
    assert choice is not None
    spent = llm.engine.seconds.minus(before)
    return Run(choice, (len(choice.token_ids) - 1) / spent.decode)


def main() -> int:
    """Print the text and the table."""
    console = Console(highlight=False)
    begun = time.perf_counter()
    plain = LLM(MODEL, speculation=None, dtype="float32")
    fast = LLM.from_model(plain.engine.target, plain.tokenizer, speculation="auto")
    console.print(f"[dim]{MODEL}-Instruct, float32, loaded in {time.perf_counter() - begun:.1f} s[/dim]\n")
    prompt = plain.encode_chat([{"role": "user", "content": QUESTION}])
    for llm in (plain, fast):  # the first passes allocate
        llm.generate(prompt, SamplingParams(max_tokens=4))
    drafted = run(fast, prompt, console, show=True)
    alone = run(plain, prompt, console, show=False)

    stats = drafted.choice.speculation
    table = Table(title="green: accepted drafts", title_style="dim")
    for column in ("", "tokens/s", "speedup", "α", "τ"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("plain", f"{alone.tokens_per_second:.1f}", "1.00×", "", "1.00")
    table.add_row(
        fast.drafter_config.method,
        f"{drafted.tokens_per_second:.1f}",
        f"{drafted.tokens_per_second / alone.tokens_per_second:.2f}×",
        f"{stats.acceptance_rate:.2f}",
        f"{stats.mean_accepted_length:.2f}",
    )
    console.print("\n")
    console.print(table)
    identical = drafted.choice.token_ids == alone.choice.token_ids
    console.print(f"identical: {'yes' if identical else 'no'}")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
