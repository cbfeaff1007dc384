"""Grammars for calls, as llguidance reads them: a correct call is accepted, anything else is not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from outrider.server.tools.answer import answer_format
from outrider.server.tools.functions import Function, Mode, ToolChoice
from outrider.server.tools.parts import Content, Reasoning, ToolCallArguments, ToolCallStart, joined

END = "<|im_end|>"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = (Function("weather", CITY), Function("now"))
REQUIRED, NOW, AUTO = ToolChoice(Mode.REQUIRED), ToolChoice(Mode.REQUIRED, "now"), ToolChoice(Mode.AUTO)

Z = '{"city": "Zürich <x> {", "days": [1, 2]}'
FAMILIES: dict[str, tuple[str, tuple[str, ...], str, str, str]] = {
    # template, markers, a call of weather, a call of now, what stands between
    "hermes": (
        "<tool_call>",
        ("<tool_call>", "</tool_call>"),
        f'<tool_call>\n{{"name": "weather", "arguments": {Z}}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "\n",
    ),
    "llama": (
        "<|python_tag|>",
        ("<|python_tag|>",),
        f'{{"name": "weather", "parameters": {Z}}}',
        '{"name": "now", "parameters": {}}',
        "; ",
    ),
    "mistral": (
        "[TOOL_CALLS]' + name + '[ARGS]",
        ("[TOOL_CALLS]", "[ARGS]"),
        f"[TOOL_CALLS]weather[ARGS]{Z}",
        "[TOOL_CALLS]now[ARGS]{}",
        "",
    ),
    "mistral without args": (
        "[TOOL_CALLS]' + name",
        ("[TOOL_CALLS]",),
        f"[TOOL_CALLS]weather{Z}",
        "[TOOL_CALLS]now{}",
        "",
    ),
    "mistral list": (
        "[TOOL_CALLS] [",
        ("[TOOL_CALLS]",),
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {Z}}}',
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}',
        ", ",
    ),
}


@lru_cache
def tokenizer_with(special: tuple[str, ...]) -> tuple[Backend, LLTokenizer, dict[str, int]]:
    """One token for each byte, and special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(spelling, normalized=False) for spelling in (END, *special)])
    ids = {spelling: i for spelling in (END, *special) if (i := backend.token_to_id(spelling)) is not None}
    return backend, LLTokenizer(backend.to_str(), eos_token=ids[END]), ids


class Judge:
    """What a grammar accepts.

    Args:
        template: the chat template.
        special: spellings of special tokens.
        choice: as in the request.
        prompt: the end of the prompt.
        functions: those offered.
        several: allow several calls.
    """

    def __init__(
        self,
        template: str,
        special: tuple[str, ...],
        choice: ToolChoice = REQUIRED,
        prompt: str = "",
        functions: tuple[Function, ...] = FUNCTIONS,
        *,
        several: bool = True,
    ) -> None:
        self.backend, self.tokenizer, ids = tokenizer_with(special)
        self.answer = answer_format(template, ids, prompt, functions)
        grammar = self.answer.grammar(choice, several=several)
        assert grammar is not None
        self.grammar = LLMatcher.grammar_from_lark(grammar)
        assert LLMatcher.validate_grammar(self.grammar, self.tokenizer) == ""

    def accepted(self, text: str) -> int:
        """How many characters of a text the grammar allows; one more if the answer may end there."""
        ids = self.backend.encode(text + END, add_special_tokens=False).ids
        count = LLMatcher(self.tokenizer, self.grammar).validate_tokens(ids)
        return len(text) + 1 if count == len(ids) else len(self.backend.decode(ids[:count], skip_special_tokens=False))

    def accepts(self, text: str) -> bool:
        """Whether a text is a whole answer."""
        return self.accepted(text) > len(text)


@pytest.fixture(params=["special markers", "text markers"])
def special(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "special markers")


def texts_of(family: str) -> tuple[str, str, str]:
    """A call of each function, and both in one answer."""
    _, _, weather, now, between = FAMILIES[family]
    end = "]" if family == "mistral list" else ""
    second = now.removeprefix("[TOOL_CALLS] [") if end else now
    return weather + end, now + end, weather + between + second + end


@pytest.mark.parametrize("family", FAMILIES)
def test_a_required_call_is_a_call(family: str, special: bool) -> None:
    template, markers, *_ = FAMILIES[family]
    weather, now, both = texts_of(family)
    judge = Judge(template, markers if special else ())
    for text in (weather, now, both):
        assert judge.accepts(text)
        assert not judge.accepts(text[:-1])
        assert not judge.accepts(text + " Done.")
    for text in (
        "Hello",
        "{}",
        "",
        " " + now,
        now.replace("now", "never"),
        weather.replace("city", "town"),
        weather.replace("1", "x"),
    ):
        assert not judge.accepts(text)
    assert judge.accepted("Hello") == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parser_reads_what_the_grammar_allows(family: str, special: bool) -> None:
    template, markers, *_ = FAMILIES[family]
    judge = Judge(template, markers if special else ())
    parser = judge.answer.parser()
    parts = joined([*parser.push(texts_of(family)[2]), *parser.finish()])
    assert [part.name for part in parts if isinstance(part, ToolCallStart)] == ["weather", "now"]
    assert [part.text for part in parts if isinstance(part, ToolCallArguments)] == [Z, "{}"]
    assert len(parts) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_function_is_called_once(family: str, special: bool) -> None:
    template, markers, *_ = FAMILIES[family]
    weather, now, both = texts_of(family)
    judge = Judge(template, markers if special else (), NOW)
    assert judge.accepts(now)
    assert not judge.accepts(weather)
    assert not judge.accepts(both)
    single = Judge(template, markers if special else (), several=False)
    assert single.accepts(now)
    assert single.accepts(weather)
    assert not single.accepts(both)


@pytest.mark.parametrize("family", FAMILIES)
def test_strict_functions_are_called_by_their_schemas_alone(family: str, special: bool) -> None:
    template, markers, *_ = FAMILIES[family]
    weather, now, both = texts_of(family)
    strict = tuple(replace(function, strict=True) for function in FUNCTIONS)
    judge = Judge(template, markers if special else (), AUTO, functions=strict)
    for text in ("", "Hello <b>\n[x] {", weather, now, both):
        assert judge.accepts(text), text
    wrong = weather.replace("city", "town")
    assert not judge.accepts(wrong)
    assert judge.accepted(wrong) <= wrong.index("town") + 1
    if family != "llama":  # whose calls begin the answer
        assert judge.accepts(f"Let me see.\n{both}")
        assert not judge.accepts(f"Let me see.\n{wrong}")
    single = Judge(template, markers if special else (), AUTO, functions=strict, several=False)
    assert single.accepts(now)
    assert not single.accepts(both) or family in ("hermes", "mistral", "mistral without args")


def test_nothing_constrains_an_answer_that_may_be_anything() -> None:
    answer = answer_format("<tool_call>", {}, "", FUNCTIONS)
    assert answer.grammar(AUTO) is None
    assert answer.grammar(ToolChoice(Mode.NONE)) is None
    assert answer_format("<tool_call>", {}, "").grammar(AUTO) is None


@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
@pytest.mark.parametrize("choice", [REQUIRED, AUTO])
def test_reasoning_comes_before_the_calls(tags: tuple[str, str], choice: ToolChoice, special: bool) -> None:
    strict = tuple(replace(function, strict=True) for function in FUNCTIONS)
    template = "<tool_call>" + tags[1]
    weather, now, _ = texts_of("hermes")
    opened = Judge(template, tags if special else (), choice, f"{END}{tags[0]}\n", strict)
    thought = f"Hm, <tool_call>?\n{tags[1]}\n\n"
    assert opened.accepts(thought + now)
    assert not opened.accepts(thought + weather.replace("city", "town"))
    free = Judge(template, tags if special else (), choice, "", strict)
    assert free.accepts(now)
    assert free.accepts(f"{tags[0]}\n{thought}{weather}")
    assert not free.accepts(f"{tags[0]}\n{thought}{weather.replace('city', 'town')}")
    if choice is REQUIRED:
        assert not free.accepts(f"{tags[0]}\n{thought}Done.")
        assert not opened.accepts(now)
    parser = opened.answer.parser()
    parts = joined([*parser.push(thought + now), *parser.finish()])
    assert parts[0] == Reasoning("Hm, <tool_call>?")
    assert not any(isinstance(part, Content) for part in parts)


ODD: dict[str, tuple[Any, str, str]] = {
    # schema, arguments that follow it, arguments that do not
    "no schema": ({}, "{}", '{"a": 1}'),
    "no type": ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a": 1}', "{}"),
    "references": (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"enum": ["x", "</tool_call>"]}}},
        '{"a": "</tool_call>"}',
        '{"a": "y"}',
    ),
    "what a grammar cannot say": (
        {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}}},
        '{"a": [1, 1]}',
        '{"a": ["x"]}',
    ),
    "quotes and lines": ({"properties": {'"\\\n': {"const": "é\n"}}}, '{"\\"\\\\\\n": "é\\n"}', '{"\\"\\\\\\n": "e"}'),
}


@pytest.mark.parametrize("name", ODD)
def test_schemas_are_taken_as_users_give_them(name: str) -> None:
    schema, right, wrong = ODD[name]
    judge = Judge("<tool_call>", (), functions=(Function("a-B_9", schema),))
    call = '<tool_call>\n{"name": "a-B_9", "arguments": %s}\n</tool_call>'
    assert judge.accepts(call % right)
    assert not judge.accepts(call % wrong)
