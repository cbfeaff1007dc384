"""Spellings of special tokens in users' strings stay text.

A chat template writes special tokens and users' strings into one text.  So a spelling in a user's string is marked
before the template runs: a character that no text contains stands behind its first character.  In the written text the
template's own spellings are those without a mark.  They get aliases, the marks are taken out, and a copy of the
tokenizer that knows the aliases, and reads special tokens as text, encodes the whole.  So the tokenizer itself treats
the places where text meets a special token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import tokenizers

from outrider.errors import RequestError
from outrider.models.files.encoding import ids_of
from outrider.models.files.spellings import first_characters, one_of

_MARK: Final = "\ufdd0"
_ALIAS: Final = "\ufdd1"
"""Two of Unicode's noncharacters, which are for a program's own use and never part of a text."""
_WRITTEN_MARK: Final = re.compile(r"\ufdd0|\\+ufdd0")
"""A mark as a template writes it; JSON in ASCII and Python's ``repr`` escape it."""
_FOREIGN: Final = re.compile(r"[\ufdd0\ufdd1]|\\ufdd0", re.IGNORECASE)
_WORDS: Final = frozenset({"role", "type"})
"""Keys whose values templates build special tokens from; only whole spellings are marked there."""


@dataclass(frozen=True)
class Told:
    """What a user gives a chat template: messages, tools and the template's other values."""

    messages: Any
    tools: Any
    values: Any


class LiteralText:
    """Marks spellings of special tokens, and encodes texts with marks.

    Spellings of one character, and words that match only between other characters than letters, are left alone.

    Args:
        backend: the tokenizer; it is not changed.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._added = {token.content: (i, token) for i, token in backend.get_added_tokens_decoder().items()}
        marked = [t.content for _, t in self._added.values() if t.special and not t.single_word and len(t.content) > 1]
        self._marked = frozenset(marked)
        self._whole = re.compile(first_characters(marked, open_end=False))
        self._begun = re.compile(first_characters(marked, open_end=True))
        self._by_template: dict[str, re.Pattern[str]] = {}

    def mark(self, told: Told, template: str) -> Told:
        """Mark the spellings in all strings; returns ``told`` itself if there are none.

        The first characters of a spelling at the end of a string are marked too, because a template may join strings.
        A spelling that the template looks for, such as ``</think>``, is left alone in the model's own messages.

        Args:
            told: what the user gives.
            template: the chat template's text.

        Raises:
            RequestError: a spelling stands beside characters that are for this program's own use.
        """
        marked = Told(
            self._messages(told.messages, self._own_messages(template)),
            self._value(told.tools, self._begun),
            self._value(told.values, self._begun),
        )
        if marked.messages is told.messages and marked.tools is told.tools and marked.values is told.values:
            return told
        if found := _foreign(told.messages) or _foreign(told.tools) or _foreign(told.values):
            raise RequestError(
                f"a text contains {found!a}, a Unicode noncharacter, beside the spelling of a special token; "
                "take one of them out"
            )
        return marked

    def encode(self, text: str) -> list[int]:
        """Encode a text with marks: spellings without one become special tokens, all others stay text.

        Raises:
            RequestError: the tokenizer does not find all special tokens of the template.
        """
        written = 0

        def alias(found: re.Match[str]) -> str:
            nonlocal written
            if not self._added[found[0]][1].special:
                return found[0]
            written += 1
            return _ALIAS + found[0]

        aliased = _WRITTEN_MARK.sub("", self._own.sub(alias, text))
        backend, real = self._copy
        ids = ids_of(backend, aliased, add_special_tokens=False)
        if sum(i in real for i in ids) != written:
            raise RequestError(
                "this tokenizer cannot tell special tokens from their spellings; take spellings of special tokens, "
                "such as </s>, out of the messages"
            )
        return [real.get(i, i) for i in ids]

    def prepare(self) -> None:
        """Copy the tokenizer now, which takes up to a second, instead of with the first text that needs it."""
        _ = self._copy, self._own

    @staticmethod
    def without_marks(text: str) -> str:
        """Return the text without marks."""
        return _WRITTEN_MARK.sub("", text)

    @cached_property
    def _own(self) -> re.Pattern[str]:
        return re.compile(one_of(self._added))

    @cached_property
    def _copy(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """The copy of the tokenizer, and the special tokens' ids by the ids of their aliases."""
        copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
        copy.encode_special_tokens = True
        real = {}
        for spelling, (token_id, token) in self._added.items():
            if token.special:
                flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
                copy.add_tokens([tokenizers.AddedToken(_ALIAS + spelling, **flags)])
                real[copy.token_to_id(_ALIAS + spelling)] = token_id
        return copy, {alias: token_id for alias, token_id in real.items() if alias is not None}

    def _own_messages(self, template: str) -> re.Pattern[str]:
        """What to mark in the model's own messages: everything that the template does not look for."""
        known = self._by_template.get(template)
        if known is None:
            kept = self._marked - _looked_for(template, self._marked)
            known = re.compile(first_characters(kept, open_end=True))
            self._by_template[template] = known
        return known

    def _messages(self, messages: Any, own: re.Pattern[str]) -> Any:
        marked = [
            self._value(message, own if message.get("role") == "assistant" else self._begun)
            if isinstance(message, Mapping)
            else message
            for message in messages
        ]
        return marked if any(new is not old for new, old in zip(marked, messages, strict=True)) else messages

    def _value(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return pattern.sub(_marked_match, value) if pattern.search(value) else value
        if isinstance(value, Mapping):
            new = {
                self._value(key, self._whole): self._value(item, self._whole if key in _WORDS else pattern)
                for key, item in value.items()
            }
            same = all(key is old and item is value[old] for (key, item), old in zip(new.items(), value, strict=True))
            return value if same else new
        if isinstance(value, (list, tuple)):
            items = [self._value(item, pattern) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value


def _looked_for(template: str, spellings: Collection[str]) -> set[str]:
    """The spellings that a template searches texts for."""
    one = one_of(spellings)
    place = rf"""(['"])({one})\1\s+(?:not\s+)?in\b|\.(?:split|startswith|endswith|replace)\(\s*['"]({one})['"]"""
    return {match[2] or match[3] for match in re.finditer(place, template)}


def _marked_match(found: re.Match[str]) -> str:
    return found[0] + _MARK


def _foreign(value: Any) -> str | None:
    """The first character for our own use in a value's strings."""
    if isinstance(value, str):
        return match[0] if (match := _FOREIGN.search(value)) else None
    if isinstance(value, Mapping):
        return next((found for item in value.items() if (found := _foreign(item))), None)
    if isinstance(value, (list, tuple)):
        return next((found for item in value if (found := _foreign(item))), None)
    return None
