"""The prompts that come with Outrider, for who brings none: a few of each kind, in turns.

They were written for this project and are in no set that models are judged by.  The trainer refuses them, as it does
the prompts of those sets: nothing is trained on what it is measured with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from outrider.prompts.prompt import Prompt
from outrider.prompts.reader import parse, read_file

BUILT_IN: Final = "built-in prompts"
"""What results call them."""


@lru_cache
def built_in() -> tuple[Prompt, ...]:
    """Code, chat, edit, translate, extract and maths; any six neighbours are one of each."""
    text = (files("outrider.prompts") / "built_in.jsonl").read_text(encoding="utf-8")
    return tuple(parse(text, name=BUILT_IN, category="chat", is_json=True))


def read(path: Path | None) -> Iterator[Prompt]:
    """The prompts of a file, in its order, or the built-in ones for None.

    Raises:
        ConfigError: the file cannot be read, or a line is no prompt; file and line are named.
    """
    return iter(built_in()) if path is None else read_file(path)
