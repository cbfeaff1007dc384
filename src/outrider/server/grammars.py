"""Which grammar a request's answer must follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from outrider.grammar import Grammar
from outrider.server.failures import Refusal
from outrider.server.wire.shared import ResponseFormat, SamplingFields

_GUIDED: Final[dict[str, Callable[[Any], Grammar]]] = {
    "guided_json": Grammar.json_schema,
    "guided_regex": Grammar.regex,
    "guided_grammar": Grammar.lark,
    "guided_choice": Grammar.choice,
}
"""vLLM's fields, and what they say."""


def has_form(fields: SamplingFields) -> bool:
    """Whether a request's fields may ask for a grammar, which takes up to a second to compile."""
    return fields.response_format is not None or any(getattr(fields, name) is not None for name in _GUIDED)


def grammar_of(fields: SamplingFields) -> Grammar | None:
    """The grammar that a request's fields ask for; None if there is none.

    Raises:
        Refusal: they ask for several.
        ConfigError: a grammar has a mistake, or is too large.
    """
    asked = {name: value for name in _GUIDED if (value := getattr(fields, name)) is not None}
    found = {name: _GUIDED[name](value) for name, value in asked.items()}
    if fields.response_format is not None and (grammar := _of_format(fields.response_format)) is not None:
        found["response_format"] = grammar
    if len(found) > 1:
        raise Refusal(400, f"{' and '.join(found)} ask for different forms of one answer; give one", [*found][-1])
    return next(iter(found.values()), None)


def _of_format(asked: ResponseFormat) -> Grammar | None:
    if asked.type == "json_object":
        return Grammar.json_object()
    if asked.type != "json_schema":
        return None
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        raise Refusal(400, "response_format of type json_schema needs json_schema with a schema", "response_format")
    return Grammar.json_schema(asked.json_schema.schema_)
