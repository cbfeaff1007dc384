"""The built-in prompts: a few of each kind.

They were written for this project and are in no public evaluation set.  The trainer refuses them, like the prompts of
those sets, so that nothing is trained on what it is measured with.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Final

from outrider.prompts.prompt import Prompt
from outrider.prompts.reader import parse

BUILT_IN: Final = "built-in prompts"
"""Their name in results."""


@lru_cache
def built_in() -> tuple[Prompt, ...]:
    """The prompts, of six kinds in turns: code, chat, edit, translate, extract and maths."""
    text = (files("outrider.prompts") / "built_in.jsonl").read_text(encoding="utf-8")
    return tuple(parse(text, name=BUILT_IN, category="chat", is_json=True))
