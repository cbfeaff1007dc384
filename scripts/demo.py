"""The demo: two texts, plain and speculative, side by side in figures."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider import LLM, Choice, SamplingParams, Speculation

MODEL = "SmolLM2-135M"
HEAD = "smollm2-135m-eagle3"
"""Made by `outrider train` for this model; see docs/training.md."""
REPEATING = """Add a docstring to each function and repeat the whole code:

def area_of_rectangle(width, height):
    return width * height

def area_of_triangle(base, height):
    return base * height / 2

def area_of_circle(radius):
    return 3.14159 * radius * radius
"""
ANSWERING = "Why is the sky blue in the day and red in the evening?"
PARAMS = SamplingParams(max_tokens=192)
RUNS = 3
"""Of each arm, in turns: a machine that is busy for a while slows down one of them at most."""


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


def measured(arms: dict[str, LLM], prompt: list[int], console: Console) -> dict[str, list[Run]]:
    """The runs of each arm, slowest first; all take turns, and the first speculative text is shown once."""
    shown, found = list(arms)[1], {name: list[Run]() for name in arms}
    for turn in range(RUNS):
        for name, llm in arms.items():
            found[name].append(run(llm, prompt, console, show=turn == 0 and name == shown))
    return {name: sorted(runs, key=lambda each: each.tokens_per_second) for name, runs in found.items()}


def row(name: str, found: Run, alone: Run) -> tuple[str, ...]:
    """A line of the table."""
    stats = found.choice.speculation
    return (
        name,
        f"{found.tokens_per_second:.1f}",
        f"{found.tokens_per_second / alone.tokens_per_second:.2f}×",
        f"{stats.acceptance_rate:.2f}" if sum(stats.drafted) else "",
        f"{stats.mean_accepted_length:.2f}",
    )


def main() -> int:
    """Print the texts and a table for each."""
    console = Console(highlight=False)
    begun = time.perf_counter()
    plain = LLM(MODEL, speculation=None)
    target, tokenizer = plain.engine.target, plain.tokenizer
    arms = {"plain": plain}
    # So small a target verifies about as fast as the head drafts: one step pays, more do not.
    for plan in ("auto", Speculation("auto", options={"model": HEAD, "num_steps": 1})):
        fast = LLM.from_model(target, tokenizer, speculation=plan)
        arms[fast.drafter_config.method] = fast
    console.print(f"[dim]{MODEL}-Instruct, loaded in {time.perf_counter() - begun:.1f} s[/dim]")
    same = True
    for question in (REPEATING, ANSWERING):
        prompt = plain.encode_chat([{"role": "user", "content": question}])
        for llm in arms.values():  # the first passes allocate
            llm.generate(prompt, SamplingParams(max_tokens=4))
        console.print(f"\n[bold]{question.partition(':')[0]}[/bold]\n")
        runs = measured(arms, prompt, console)
        table = Table(title=f"green: accepted drafts; medians of {RUNS} runs in turns", title_style="dim")
        for column in ("", "tokens/s", "speedup", "α", "τ"):
            table.add_column(column, justify="right" if column else "left")
        middle = {name: found[RUNS // 2] for name, found in runs.items()}
        for name, found in runs.items():
            table.add_row(*row(name, middle[name], middle["plain"]))
            same &= all(each.choice.token_ids == middle["plain"].choice.token_ids for each in found)
        console.print("\n")
        console.print(table)
    console.print(f"identical: {'yes' if same else 'no'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
