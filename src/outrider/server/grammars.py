"""Which grammar a request's answer must follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from outrider.grammar import Grammar
from outrider.server.failures import Refusal
from outrider.server.wire.chat import ChatRequest, NamedTool
from outrider.server.wire.shared import ResponseFormat, SamplingFields

_KINDS: Final[dict[str, Callable[[Any], Grammar]]] = {
    "json": Grammar.json_schema,
    "json_object": lambda wanted: Grammar.json_object(),
    "regex": Grammar.regex,
    "grammar": Grammar.lark,
    "choice": Grammar.choice,
}
"""The kinds of form that vLLM's fields name, and what they say."""
_GUIDED: Final = ("json", "regex", "grammar", "choice")
"""Those with a field of their own, ``guided_…``."""
_STRUCTURED: Final = "structured_outputs"
"""The field that holds one of them by its name."""


def has_form(fields: SamplingFields) -> bool:
    """Whether a request's fields may ask for a grammar, which takes up to a second to compile."""
    return fields.response_format is not None or bool(_named(fields))


def chat_has_form(body: ChatRequest) -> bool:
    """The same for a conversation, whose calls may have to follow a grammar, too."""
    bound = body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool)
    return bound or any(tool.function.strict for tool in body.tools or ()) or has_form(body)


def grammar_of(fields: SamplingFields) -> Grammar | None:
    """The grammar that a request's fields ask for; None if there is none.

    Raises:
        Refusal: they ask for several, or say that there is one and do not name it.
        ConfigError: a grammar has a mistake, or is too large.
    """
    found = {name: _KINDS[kind](value) for name, (kind, value) in _named(fields).items()}
    if fields.response_format is not None and (grammar := _of_format(fields.response_format)) is not None:
        found["response_format"] = grammar
    if fields.structured_outputs is not None and not any(name.startswith(_STRUCTURED) for name in found):
        told = f"{_STRUCTURED} names no form; give one of: {', '.join(_KINDS)}"
        raise Refusal(400, told, _STRUCTURED)
    if len(found) > 1:
        raise Refusal(400, f"{' and '.join(found)} ask for different forms of one answer; give one", [*found][-1])
    return next(iter(found.values()), None)


def _named(fields: SamplingFields) -> dict[str, tuple[str, Any]]:
    """What vLLM's fields ask for: for each field's name, the kind of form and its value."""
    wishes = {f"guided_{kind}": (kind, getattr(fields, f"guided_{kind}")) for kind in _GUIDED}
    if fields.structured_outputs is not None:
        given = fields.structured_outputs.model_dump(by_alias=True)
        wishes |= {f"structured_outputs.{kind}": (kind, value) for kind, value in given.items() if value is not False}
    return {name: (kind, value) for name, (kind, value) in wishes.items() if value is not None}


def _of_format(asked: ResponseFormat) -> Grammar | None:
    if asked.type == "json_object":
        return Grammar.json_object()
    if asked.type != "json_schema":
        return None
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        raise Refusal(400, "response_format of type json_schema needs json_schema with a schema", "response_format")
    return Grammar.json_schema(asked.json_schema.schema_)
