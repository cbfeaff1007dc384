"""The prompts of an audit: the user's, or short ones of many kinds followed by the built-in ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outrider.errors import ConfigError
from outrider.prompts import Prompt, read

STRANGE: Final = (
    "The lighthouse keeper wrote in his diary that the storm had",
    "def median(values):\n    ordered = sorted(values)\n",
    "for (int i = 0; i < count; i++) {\n    total += prices[i];\n}\nfor (int j = 0; j <",
    "ring ring ring ring ring ring ring ring",
    "I like the red one and I like the blue one and I like the",
    "1, 2, 4, 8, 16, 32, 64, 128, 256,",
    "Invoice 4711: 12 x 3.50 = 42.00; 7 x 19.99 = 139.93; 3 x 8.25 =",
    "Das Café am Fluß öffnet früh, und die Gäste bestellen",
    "東京の天気は晴れ、大阪の天気は",
    "Москва, Київ, София и 🙂🚀 — ",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}\n{"name": "Alan", "born":',
    "Q: What is the capital of France?\nA: Paris\nQ: What is the capital of Italy?\nA: Rome\nQ: What is the capital of",
)
"""Texts to continue, of many kinds; without prompts of the user, faults and decoys run on these."""


def audit_prompts(path: Path | None) -> tuple[Prompt, ...]:
    """Read the prompts of an audit.

    Args:
        path: see :func:`outrider.prompts.read`; None takes :data:`STRANGE` and the built-in prompts.

    Raises:
        ConfigError: the file cannot be read or has no prompts, or a line is not a prompt.
    """
    if path is None:
        strange = (Prompt(place, f"strange-{place + 1}", "strange", text=text) for place, text in enumerate(STRANGE))
        return (*strange, *read(None))
    prompts = tuple(prompt.asked() for prompt in read(path))
    if not prompts:
        raise ConfigError(f"the prompt file {path} has no prompts")
    return prompts
