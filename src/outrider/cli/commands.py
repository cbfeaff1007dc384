"""The subcommands, what their arguments may be, and the exit codes."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "generate": "Complete one prompt.",
    "chat": "Chat with a model; accepted drafts are highlighted.",
    "serve": "Serve a model over HTTP, as OpenAI does, with a page to chat.",
    "bench": "Measure the speedup of each drafting method.",
    "study": "Compare drafters by quality, acceptance rate, latency and speedup.",
    "train": "Train a drafter for your model, on the model's own answers.",
    "export": "Write a trained head in another project's format.",
    "audit": "Prove on your own model that speculation does not change the output.",
    "models": "List the models that you can name.",
    "info": "Show versions and hardware; --methods lists drafting methods and acceptance rules.",
}
"""Every subcommand and its help; ``cli/<name>.py`` holds a function of the same name."""
GROUPS: Final = {"bench": {"kernels": "Time the CPU kernels and a model's forward passes."}}
"""Subcommands of a subcommand, and their help."""
PROMPTED: Final = frozenset({"generate"})
"""Subcommands whose argument is a prompt; ``-`` reads it from standard input."""
JSON_TO_FILES: Final = frozenset({"bench", "study"})
"""Subcommands whose ``--json`` takes a file; without one, or with ``-``, it prints to standard output."""
TAKES_DASH: Final = {
    "generate": ("--prompt-file", "--stop", "--bad-words"),
    "chat": ("--stop", "--bad-words", "--system"),
    "bench": ("--json",),
    "study": ("--json",),
}
"""Options whose value may be ``-``, by subcommand."""
WAITED_FOR: Final = frozenset({"generate", "chat", "serve"})
"""Subcommands that show a spinner on a terminal while torch is imported."""

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
