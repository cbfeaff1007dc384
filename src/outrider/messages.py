"""Reads one or several conversations in OpenAI's format; the tokenizer handles content parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from outrider.errors import RequestError

Message = Mapping[str, Any]
"""``{"role": …, "content": …}``; the content is a text or a list of ``{"type": "text", "text": …}``."""
Messages = str | Message | Sequence[Message]
"""A conversation; a text is one user message."""
Tool = Mapping[str, Any] | Callable[..., Any]
_MESSAGES, _TOOLS = "messages", "tools"


def read_conversations(given: Any) -> tuple[list[list[dict[str, Any]]], bool]:
    """Read one conversation or several.

    Args:
        given: a text, a message, a list of messages, or a list of such lists.

    Returns:
        The conversations as lists of messages, and whether several were given.

    Raises:
        RequestError: it is none of these, or a message has no role or no content; the message names the place.
    """
    if isinstance(given, str):
        return [[{"role": "user", "content": given}]], False
    if isinstance(given, Mapping) or hasattr(given, "model_dump"):
        return [[_message(given, "the message")]], False
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise RequestError(f"a conversation must be a text or a list of messages, not {given!r}", param=_MESSAGES)
    items = list(given)
    if items and all(isinstance(item, (list, tuple)) for item in items):
        return [_conversation(item, f"messages[{place}]") for place, item in enumerate(items)], True
    return [_conversation(items, "messages")], False


TEMPLATE_OPTIONS: Final = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
"""What :func:`read_template` reads, in its order."""


def read_template(
    tools: Any, add_generation_prompt: bool | None, continue_final_message: bool, further: Any
) -> dict[str, Any]:
    """Read the chat template's variables other than the messages.

    Args:
        tools: functions, or dicts with a JSON schema.
        add_generation_prompt: begin a new answer; None does so unless ``continue_final_message`` is set.
        continue_final_message: continue the last message instead.
        further: the template's own variables.

    Returns:
        Keyword arguments of ``Tokenizer.apply_chat_template``.

    Raises:
        RequestError: a value has the wrong type.
    """
    if not isinstance(further or {}, Mapping) or not all(isinstance(name, str) for name in further or ()):
        told = f"chat_template_kwargs must be a dict of names and values, not {further!r}"
        raise RequestError(told, param="chat_template_kwargs")
    begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    return {
        "tools": _tools(tools),
        "add_generation_prompt": begins,
        "continue_final_message": bool(continue_final_message),
        "template_kwargs": dict(further or {}),
    }


def _tools(given: Any) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        told = f"tools must be a list of functions or of dicts with a JSON schema, not {given!r}"
        raise RequestError(told, param=_TOOLS)
    tools = list(given)
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping) and not callable(tool):
            told = f"tools[{place}] must be a function or a dict with a JSON schema, not {tool!r}"
            raise RequestError(told, param=_TOOLS)
    return tools or None


def _conversation(given: Sequence[Any], name: str) -> list[dict[str, Any]]:
    if not given:
        raise RequestError(f"{name} is empty; give it at least one message", param=_MESSAGES)
    return [_message(item, f"{name}[{place}]") for place, item in enumerate(given)]


def _message(given: Any, name: str) -> dict[str, Any]:
    if hasattr(given, "model_dump"):  # an object of OpenAI's client
        given = given.model_dump(exclude_none=True)
    if not isinstance(given, Mapping):
        raise RequestError(f"{name} must be a dict with role and content, not {given!r}", param=_MESSAGES)
    message = dict(given)
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{name} has no role; give it one, such as user or assistant", param=_MESSAGES)
    if message.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call, name) for call in message["tool_calls"]]
    elif not isinstance(message.get("content"), (str, list, tuple)):
        told = f"{name} must have a text or a list of parts as content, not {message.get('content')!r}"
        raise RequestError(told, param=_MESSAGES)
    return message


def _tool_call(given: Any, name: str) -> Any:
    """A tool call with its arguments as a dict, as templates expect, instead of OpenAI's JSON text."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return given
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        told = f"{name} calls {function.get('name')!r} with arguments that are not JSON: {error}"
        raise RequestError(told, param=_MESSAGES) from None
    return {**given, "function": {**function, "arguments": arguments}}
