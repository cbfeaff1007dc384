"""Write a conversation in the form that a model was trained on.

transformers runs the template; this file chooses among several templates, handles contents in parts, and names the
cause of a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jinja2

from outrider.errors import ModelError, OutriderError, RequestError, one_line
from outrider.models.files.hf_tokenizer import FIXED, Template, write_conversation

Message = Mapping[str, Any]
_DEFAULT: Final = "default"
_WITH_TOOLS: Final = "tool_use"
"""Name of the template for conversations with tools."""
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_SEPARATOR: Final = "\n"
"""Joins the parts of a content for templates that take only strings, as in vLLM and llama.cpp."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's template, or several by name, and the special tokens that it may use by name.

    Raises:
        ModelError: there is none, or it cannot be compiled or run.
        RequestError: it refuses the messages, or fails on them.
    """

    owner: str
    """Name of the model, for messages."""
    source: Template | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def write(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        continue_final_message: bool | str,
        template_kwargs: Mapping[str, Any] | None,
    ) -> str:
        """Write the conversation as text."""
        name, template = self._chosen(with_tools=tools is not None)
        extra = dict(template_kwargs or {})
        if wrong := sorted(FIXED & extra.keys()):
            raise RequestError(f"{self.owner}: no template reads {wrong[0]!r}; take it out of template_kwargs")
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                f"{self.owner}: continue_final_message continues the last message and add_generation_prompt begins "
                "another; switch one of them off"
            )
        values: dict[str, Any] = {
            **self.special_tokens,
            **extra,
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }

        def write(conversation: Sequence[Message]) -> str:
            try:
                return write_conversation(template, conversation, values)
            except Exception as error:  # a template may run into anything
                raise self._blame(error, name) from error

        return _write_parts(self._checked(messages), write)

    def _chosen(self, *, with_tools: bool) -> tuple[str, str]:
        """Name of the template for messages, and its text."""
        if not self.source:
            raise ModelError(f"{self.owner}: has no chat template; send a plain prompt, or use an instruct model")
        if isinstance(self.source, str):
            return "the chat template", self.source
        key = _WITH_TOOLS if with_tools and _WITH_TOOLS in self.source else _DEFAULT
        if key not in self.source:
            raise ModelError(f"{self.owner}: none of its chat templates ({', '.join(self.source)}) is the default")
        return f"the chat template {key!r}", self.source[key]

    def _blame(self, error: Exception, name: str) -> OutriderError:
        reason = one_line(error)
        if isinstance(error, jinja2.TemplateSyntaxError):
            return ModelError(f"{self.owner}: {name} cannot be compiled: {reason} (line {error.lineno})")
        if isinstance(error, jinja2.TemplateRuntimeError) and not isinstance(error, jinja2.UndefinedError):
            return ModelError(f"{self.owner}: {name} cannot be run: {reason}")  # no such filter, or not allowed to it
        if isinstance(error, jinja2.TemplateError) and not isinstance(error, jinja2.UndefinedError):
            return RequestError(f"{self.owner}: {name} refuses these messages: {reason}")
        return RequestError(f"{self.owner}: {name} fails on these messages: {reason}")

    def _checked(self, messages: Sequence[Message]) -> list[Any]:
        """Convert every part of a content to a text part."""
        if isinstance(messages, (str, Mapping)) or any(isinstance(message, (str, list)) for message in messages):
            raise RequestError(f"{self.owner}: a conversation is one list of messages, each with a role and a content")
        return [self._with_text_parts(place, message) for place, message in enumerate(messages)]

    def _with_text_parts(self, place: int, message: Any) -> Any:
        if not _has_parts(message):
            return message
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in message["content"]]
        for part in parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
                what = f"the type {kind!r}" if isinstance(kind, str) and kind not in _TEXT_PARTS else "no text"
                told = f"messages[{place}] has a part of {what}, and {self.owner} reads text alone"
                raise RequestError(told, param="messages")
        return {**message, "content": [{**part, "type": "text"} for part in parts]}


def _write_parts(messages: list[Any], write: Callable[[Sequence[Any]], str]) -> str:
    """Write messages, joining a content in parts to one string if the template needs that.

    A template needs it if it fails on parts, shows them as a list, or omits a text that it does not omit in a string.
    """
    parted = [index for index, message in enumerate(messages) if _has_parts(message)]
    if not parted:
        return write(messages)
    try:
        text = write(messages)
    except OutriderError:
        return write(_joined(messages, parted))
    shown = [index for index in parted if _shows_list(messages[index]["content"], text)]
    if lost := [index for index in parted if _lost(messages[index]["content"], text)]:
        try:
            plain = write(_joined(messages, parted))
        except OutriderError:
            plain = ""  # it needs lists
        shown += [index for index in lost if not _lost(messages[index]["content"], plain)]
    return write(_joined(messages, shown)) if shown else text


def _has_parts(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("content"), (list, tuple))


def _joined(messages: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    joined = list(messages)
    for index in indices:
        content = _SEPARATOR.join(part["text"] for part in messages[index]["content"])
        joined[index] = {**messages[index], "content": content}
    return joined


def _shows_list(content: Sequence[Message], text: str) -> bool:
    return any(shown in text for shown in (str(content), json.dumps(content, ensure_ascii=False, default=str)))


def _lost(content: Sequence[Message], text: str) -> bool:
    return any(part["text"].strip() not in text for part in content)
