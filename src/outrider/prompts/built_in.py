"""The built-in prompts: a few of each kind.

They were written for this project and are in no public evaluation set.  The trainer refuses them and the prompts of
those sets, so nothing is trained on what it is measured with.
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
"""Name of these prompts in results."""


@lru_cache
def built_in() -> tuple[Prompt, ...]:
    """The prompts, of six kinds in turns: code, chat, edit, translate, extract and maths."""
    text = (files("outrider.prompts") / "built_in.jsonl").read_text(encoding="utf-8")
    return tuple(parse(text, name=BUILT_IN, category="chat", is_json=True))


def read(path: Path | None) -> Iterator[Prompt]:
    """Read the prompts of a file, in order; None reads the built-in ones.

    Raises:
        ConfigError: the file cannot be read, or a line is not a prompt; the message names file and line.
    """
    return iter(built_in()) if path is None else read_file(path)
