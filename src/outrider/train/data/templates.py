"""Question templates filled with words, for diverse prompts even with a small target.

The data is ``templates.json``.  In a template, ``{name}`` is an entry of the list of that name, which may contain more
names; a second ``{name}`` is the same entry, ``{name2}`` another one.  ``{name.0}``, ``{name.1}`` are the parts of an
entry, which ``" :: "`` separates; ``{Name}`` starts with a capital; ``{3..9}`` is a number from 3 to 9.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, Literal

Kind = Literal["chat", "code"]
_PLACE: Final = re.compile(r"\{(?:(\d+)\.\.(\d+)|([A-Za-z_]+)(\d*)(?:\.(\d+))?)\}")
_DIVIDER: Final = " :: "


@dataclass(frozen=True)
class PromptTemplates:
    """Templates of questions and the words to fill them with."""

    families: Sequence[Mapping[str, Any]]
    """Each with its kind, weight and templates."""
    systems: Mapping[Kind, Sequence[str]]
    """System messages for sampling a question."""
    lists: Mapping[str, Sequence[str]]

    def question(self, kind: Kind, dice: random.Random) -> str:
        """One question of a kind."""
        families = [family for family in self.families if family["kind"] == kind]
        weights = [family["weight"] for family in families]
        return self._fill(dice.choice(dice.choices(families, weights)[0]["forms"]), dice)

    def system(self, kind: Kind, dice: random.Random) -> str:
        """One system message for sampling questions of a kind."""
        return self._fill(dice.choice(self.systems[kind]), dice)

    def _fill(self, form: str, dice: random.Random) -> str:
        return _Filling(self.lists, dice).fill(form)


@lru_cache
def templates() -> PromptTemplates:
    """The built-in templates and words."""
    return PromptTemplates(**json.loads((files("outrider.train.data") / "templates.json").read_text(encoding="utf-8")))


@dataclass
class _Filling:
    """The entries chosen for one template so far."""

    lists: Mapping[str, Sequence[str]]
    dice: random.Random
    chosen: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    taken: set[tuple[str, str]] = field(default_factory=set)

    def fill(self, form: str) -> str:
        return _PLACE.sub(self._entry, form)

    def _entry(self, match: re.Match[str]) -> str:
        low, high, name, which, part = match.groups()
        if low:
            return str(self.dice.randint(int(low), int(high)))
        lower = name[0].lower() + name[1:]
        if lower not in self.lists:  # a brace that belongs to the text
            return match.group()
        if (lower, which) not in self.chosen:
            left = [entry for entry in self.lists[lower] if (lower, entry) not in self.taken]
            entry = self.dice.choice(left or self.lists[lower])
            self.taken.add((lower, entry))
            self.chosen[lower, which] = _Filling(self.lists, self.dice).fill(entry).split(_DIVIDER)
        text = self.chosen[lower, which][int(part or 0)]
        return text if lower == name else text[0].upper() + text[1:]
