"""The prompts an audit runs when the user brings none: short, and unlike one another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from outrider.errors import ConfigError

BUILT_IN: Final = (
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


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a JSONL file: each line has ``prompt``, ``text`` or ``turns`` (the first turn is taken).

    Raises:
        ConfigError: the file cannot be read, holds no prompts, or a line is not one.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read: {error}") from error
    prompts = tuple(_prompt(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())
    if not prompts:
        raise ConfigError(f"the prompt file {path} holds no prompts")
    return prompts


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        value: Any = json.loads(line)
        found = value.get("prompt") or value.get("text") or value["turns"][0]
    except (ValueError, AttributeError, LookupError, TypeError):
        found = None
    if not isinstance(found, str) or not found.strip():
        raise ConfigError(f"line {number} of {path} is not a JSON object with a prompt, a text or turns")
    return found
