"""Reads conversations: one or several, with content as text or as a list of parts, as OpenAI's clients write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from outrider.errors import RequestError

Message = Mapping[str, Any]
"""``{"role": …, "content": …}``; content is a text, or a list of ``{"type": "text", "text": …}``."""
Messages = str | Message | Sequence[Message]
"""A conversation; a text is one message of the user's."""
Tool = Mapping[str, Any] | Callable[..., Any]

_TEXTS: Final = frozenset({"text", "input_text", "output_text"})
"""Types of content parts that hold text."""
_BETWEEN: Final = "\n"
"""What stands between the parts of one message."""


def read_conversations(given: Any) -> tuple[list[list[dict[str, Any]]], bool]:
    """Conversations as plain messages, and whether several were given.

    Args:
        given: a text, a message, a list of messages, or a list of such lists.

    Raises:
        RequestError: it is something else, or a message holds what is no text, naming the place.
    """
    if isinstance(given, str):
        return [[{"role": "user", "content": given}]], False
    if isinstance(given, Mapping) or hasattr(given, "model_dump"):
        return [_conversation([given], "")], False
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise RequestError(f"a conversation must be a text or a list of messages, not {given!r}")
    items = list(given)
    several = [isinstance(item, (list, tuple)) for item in items]
    if any(several) and all(several):
        return [_conversation(item, f" of conversation {place}") for place, item in enumerate(items)], True
    return [_conversation(items, "")], False


def read_tools(given: Any) -> list[Any] | None:
    """Tools as a template takes them: functions, or dicts with a JSON schema.

    Raises:
        RequestError: it is no list of these.
    """
    if given is None:
        return None
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise RequestError(f"tools must be a list of functions or of dicts with a JSON schema, not {given!r}")
    tools = list(given)
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping) and not callable(tool):
            raise RequestError(f"tool {place} must be a function or a dict with a JSON schema, not {tool!r}")
    return tools or None


def _conversation(given: Sequence[Any], where: str) -> list[dict[str, Any]]:
    if not given:
        raise RequestError(f"the conversation{where} has no message; give it at least one")
    return [_message(item, f"message {place}{where}") for place, item in enumerate(given)]


def _message(given: Any, name: str) -> dict[str, Any]:
    if hasattr(given, "model_dump"):  # what OpenAI's client hands out
        given = given.model_dump(exclude_none=True)
    if not isinstance(given, Mapping):
        raise RequestError(f"{name} must be a dict with role and content, not {given!r}")
    message = dict(given)
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{name} has no role; give it one, such as user or assistant")
    if message.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call, name) for call in message["tool_calls"]]
    elif message.get("content") is None:
        raise RequestError(f"{name} has no content; give it a text")
    if message.get("content") is not None:
        message["content"] = _content(message["content"], name)
    return message


def _content(given: Any, name: str) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"{name} must have a text or a list of parts as content, not {given!r}")
    return _BETWEEN.join(_part(part, name) for part in given)


def _part(given: Any, name: str) -> str:
    if isinstance(given, str):
        return given
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in _TEXTS:
        raise RequestError(f"{name} has a part of type {kind!r}, but this model reads text alone; leave it out")
    if not isinstance(given.get("text"), str):
        raise RequestError(f"{name} has a part of type {kind!r} without a text")
    return str(given["text"])


def _tool_call(given: Any, name: str) -> Any:
    """A call with its arguments as a dict, which templates read, where OpenAI writes JSON."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return given
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise RequestError(f"{name} calls {function.get('name')!r} with arguments that are no JSON: {error}") from None
    return {**given, "function": {**function, "arguments": arguments}}
