"""Prompt files: JSON lines, a JSON array, or plain text with one question a line.

An object is a prompt by the first of these keys that it has: ``messages`` (role and content of each turn, as chat
services write them), ``conversations`` (ShareGPT's, with ``from`` and ``value``), ``turns`` (the user's turns alone, of
which the first is asked), ``prompt`` (the user asks it) or ``text`` (the model goes on with it).
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
"""What a line may be, for messages and help."""
_IDS: Final = ("id", "question_id", "task_id")
"""Keys under which the usual sets of prompts name their rows."""
_SHAREGPT: Final = {"human": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT} | {role: role for role in ROLES}
_JSON_NAMES: Final = (".json", ".jsonl", ".ndjson")
_OBJECT: Final = re.compile(r"\s*\{")
_ARRAY: Final = re.compile(r"\s*\[")
_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()


class _Found(NamedTuple):
    """A value of a file, and where it stands."""

    place: str
    value: Any


class _Content(NamedTuple):
    """What is asked, or gone on with."""

    messages: Messages = ()
    text: str = ""


def read_file(path: Path) -> Iterator[Prompt]:
    """The prompts of a file, in its order; empty lines are none.

    Raises:
        ConfigError: the file cannot be read, or a line is no prompt; file and line are named.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {path} cannot be read: {cause(error)}") from error
    return parse(text, name=str(path), category=path.stem, is_json=path.suffix.lower() in _JSON_NAMES)


def parse(text: str, *, name: str, category: str, is_json: bool = False) -> Iterator[Prompt]:
    """The prompts of a file's text.

    Args:
        text: it; lines end at newlines and nowhere else, for a JSON string may hold other marks that end lines.
        name: what messages call the file.
        category: of prompts that name none.
        is_json: whether it must be JSON; otherwise it is where it begins as JSON does.
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
        raise ConfigError(f"{place} is no JSON object; write one on each line: {SHAPES}") from None


def _array(text: str, name: str) -> Iterator[_Found]:
    """Entries one by one, so that each is named by its line, and those that nobody asks for are not read."""
    at, line, seen, entries = text.index("[") + 1, 1, 0, 0
    while (at := _past_space(text, at)) < len(text) and text[at] != "]":
        line, seen, entries = line + text.count("\n", seen, at), at, entries + 1
        place = f"{name}: line {line}" + (f", entry {entries}" if entries > 1 else "")
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise ConfigError(f"{place} is no JSON object; write an array of {SHAPES}") from None
        yield _Found(place, value)
        at = _past_space(text, at)
        if text[at : at + 1] not in (",", "]"):
            raise ConfigError(f"{place} is followed neither by a comma nor by the array's end")
        at += text[at] == ","
    if text[at:].strip() != "]":
        line += text.count("\n", seen, at)
        raise ConfigError(f"{name}: line {line}: the array should end here, and the file with it")


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _content(place: str, value: Any) -> _Content:
    """What an object asks.

    Raises:
        ConfigError: it is none of the shapes.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} is no JSON object; write {SHAPES}")
    key = next((key for key in _READERS if value.get(key) is not None), None)
    if key is None:
        raise ConfigError(f"{place} is no prompt; write {SHAPES}")
    return _READERS[key](place, value[key])


def _messages(place: str, value: Any) -> _Content:
    return _Content(messages=_conversation(place, value, "role", "content", {role: role for role in ROLES}))


def _conversations(place: str, value: Any) -> _Content:
    return _Content(messages=_conversation(place, value, "from", "value", _SHAREGPT))


def _turns(place: str, value: Any) -> _Content:
    # A later turn goes on from an answer that the file does not hold.
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
        raise ConfigError(f"{place}: each of its messages needs a {role} and a {content}") from None
    if any(not isinstance(who, str) or who not in roles or not isinstance(said, str) for who, said in turns):
        raise ConfigError(f"{place}: the roles are {', '.join(roles)}, and what is said is text")
    messages = tuple((roles[who], _whole(place, said)) for who, said in turns)
    asked = [said for who, said in messages if who == USER]
    if not unanswered(messages) or unanswered(messages)[-1][0] != USER or not all(said.strip() for said in asked):
        raise ConfigError(f"{place}: no user's turn is left to answer, or one is empty")
    return messages


def _filled(place: str, value: Any) -> str:
    """A text that says something.

    Raises:
        ConfigError: it is no text, or is empty.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{place} is no prompt, for it has no text; write {SHAPES}")
    return _whole(place, value)


def _whole(place: str, text: str) -> str:
    """A text of whole characters.

    Raises:
        ConfigError: it holds half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{place} holds half a surrogate pair, which is no character; write the whole one") from None
    return text
