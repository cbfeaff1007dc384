"""Prompt files: JSON lines, a JSON array, or plain text with one question per line.

The first of these keys in a JSON object is its prompt: ``messages`` (turns with ``role`` and ``content``),
``conversations`` (ShareGPT's turns with ``from`` and ``value``), ``turns`` (the user's turns, of which the first is
used), ``prompt`` (a question) or ``text`` (plain text to continue).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from outrider.errors import ConfigError, cause
from outrider.prompts.prompt import ASSISTANT, ROLES, USER, Messages, Prompt, unanswered

SHAPES: Final = '{"prompt"}, {"text"}, {"turns"}, {"messages"}, {"conversations"} or plain text'
"""The formats of a line, for messages and help."""
_IDS: Final = ("id", "question_id", "task_id")
"""Keys of ids in common prompt sets."""
_SHAREGPT: Final = {"human": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT} | {role: role for role in ROLES}
_JSON_NAMES: Final = (".json", ".jsonl", ".ndjson")
_OBJECT: Final = re.compile(r"\s*\{")
_ARRAY: Final = re.compile(r"\s*\[")
_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()


class _Found(NamedTuple):
    """A value of a file, with file and line."""

    place: str
    value: Any


class _Content(NamedTuple):
    """A conversation, or a text to continue."""

    messages: Messages = ()
    text: str = ""


def read_file(path: Path) -> Iterator[Prompt]:
    """Read the prompts of a file, in order; empty lines are skipped.

    Raises:
        ConfigError: the file cannot be read, or a line is not a prompt; the message names file and line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read: {cause(error)}") from error
    return parse(text, name=str(path), category=path.stem, is_json=path.suffix.lower() in _JSON_NAMES)


def parse(text: str, *, name: str, category: str, is_json: bool = False) -> Iterator[Prompt]:
    """Read the prompts of a file's text.

    Args:
        text: the file's text; only newlines end lines, because JSON strings may hold other line separators.
        name: the file's name in messages.
        category: category of prompts without one.
        is_json: whether it must be JSON; otherwise its first character decides.
    """
    if _ARRAY.match(text):
        values = _array(text, name)
    elif is_json or _OBJECT.match(text):
        values = (_Found(found.place, _object(*found)) for found in _lines(text, name))
    else:
        values = (_Found(found.place, {"prompt": found.value.strip()}) for found in _lines(text, name))
    taken: set[str] = set()
    for number, (place, value) in enumerate(values):
        content = _content(place, value)
        given = next((value[key] for key in _IDS if value.get(key) is not None), number)
        kind = value.get("category")
        own = str(given) if str(given) not in taken else f"{given} (prompt {number})"
        taken.add(own)
        yield Prompt(number, own, str(category if kind is None else kind), content.messages, content.text, place)


def _lines(text: str, name: str) -> Iterator[_Found]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _Found(f"{name}: line {number}", line)


def _object(place: str, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{place} is not a JSON object; write one per line: {SHAPES}") from None


def _array(text: str, name: str) -> Iterator[_Found]:
    """Entries one by one, each with its line; unused entries are not parsed."""
    at, line, seen, entries = text.index("[") + 1, 1, 0, 0
    while (at := _past_space(text, at)) < len(text) and text[at] != "]":
        line, seen, entries = line + text.count("\n", seen, at), at, entries + 1
        place = f"{name}: line {line}" + (f", entry {entries}" if entries > 1 else "")
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise ConfigError(f"{place} is not a JSON object; write an array of {SHAPES}") from None
        yield _Found(place, value)
        at = _past_space(text, at)
        if text[at : at + 1] not in (",", "]"):
            raise ConfigError(f"{place} must be followed by a comma or by the end of the array")
        at += text[at] == ","
    if text[at:].strip() != "]":
        line += text.count("\n", seen, at)
        raise ConfigError(f"{name}: line {line}: the array and the file must end here")


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _content(place: str, value: Any) -> _Content:
    """Read the prompt of an object."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} is not a JSON object; write {SHAPES}")
    key = next((key for key in _READERS if value.get(key) is not None), None)
    if key is None:
        raise ConfigError(f"{place} is not a prompt; write {SHAPES}")
    return _READERS[key](place, value[key])


def _messages(place: str, value: Any) -> _Content:
    return _Content(messages=_conversation(place, value, "role", "content", {role: role for role in ROLES}))


def _conversations(place: str, value: Any) -> _Content:
    return _Content(messages=_conversation(place, value, "from", "value", _SHAREGPT))


def _turns(place: str, value: Any) -> _Content:
    # A later turn continues an answer that the file does not hold.
    return _prompt(place, value[0] if isinstance(value, list) and value else None)


def _prompt(place: str, value: Any) -> _Content:
    return _Content(messages=((USER, _filled(place, value)),))


def _text(place: str, value: Any) -> _Content:
    return _Content(text=_filled(place, value))


_READERS: Final[Mapping[str, Callable[[str, Any], _Content]]] = {
    "messages": _messages,
    "conversations": _conversations,
    "turns": _turns,
    "prompt": _prompt,
    "text": _text,
}


def _conversation(place: str, value: Any, role: str, content: str, roles: Mapping[str, str]) -> Messages:
    try:
        turns = [(turn[role], turn[content]) for turn in value]
    except (TypeError, KeyError):
        raise ConfigError(f"{place}: every message needs a {role} and a {content}") from None
    if any(not isinstance(who, str) or who not in roles or not isinstance(said, str) for who, said in turns):
        raise ConfigError(f"{place}: a role must be one of {', '.join(roles)}, and the content must be text")
    messages = tuple((roles[who], _whole(place, said)) for who, said in turns)
    asked = [said for who, said in messages if who == USER]
    if not unanswered(messages) or unanswered(messages)[-1][0] != USER or not all(said.strip() for said in asked):
        raise ConfigError(f"{place}: there is no user message to answer, or one is empty")
    return messages


def _filled(place: str, value: Any) -> str:
    """Check that a text is a string and not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{place} has no text; write {SHAPES}")
    return _whole(place, value)


def _whole(place: str, text: str) -> str:
    """Refuse a text with half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{place} holds half a surrogate pair; write the whole character") from None
    return text
