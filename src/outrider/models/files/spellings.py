"""Regular expressions that find many fixed spellings at once, in time that does not grow with their number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_END = ""
"""Key of a trie's node at which a spelling ends."""

_NOTHING = "(?!)"


def one_of(spellings: Iterable[str]) -> str:
    """Return an expression for any of the spellings; of two at one place the longer matches."""
    return _expression(_trie(spellings), open_end=False)


def beginning_of(spellings: Iterable[str]) -> str:
    """Return an expression for any of the spellings, and for the first characters of one at the end of a text."""
    return _expression(_trie(spellings), open_end=True)


def first_characters(spellings: Iterable[str], *, open_end: bool) -> str:
    """Return an expression for the first character of a spelling where the rest follows.

    Spellings that overlap are all found, because a match is one character.

    Args:
        spellings: none match nothing.
        open_end: also match where the text ends before the spelling does.
    """
    rests = [
        f"{re.escape(first)}(?={_expression(rest, open_end=open_end, inside=True)})"
        for first, rest in sorted(_trie(spellings).items())
    ]
    return "|".join(rests) or _NOTHING


def _trie(spellings: Iterable[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for spelling in filter(None, spellings):
        node = root
        for character in spelling:
            node = node.setdefault(character, {})
        node[_END] = {}
    return root


def _expression(node: dict[str, Any], *, open_end: bool, inside: bool = False) -> str:
    options = [
        re.escape(character) + _expression(child, open_end=open_end, inside=True)
        for character, child in sorted(node.items())
        if character != _END
    ]
    if _END in node:
        options.append("")
    elif open_end and inside:
        options.append(r"\Z")
    if not options:
        return _NOTHING
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
