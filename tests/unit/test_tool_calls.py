"""Calls of functions: out of an answer's text, however it is cut, and into a grammar."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from chat_templates import TEMPLATES
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import RequestError
from outrider.server.tools.answer import FAMILIES, AnswerFormat, answer_format, find_family
from outrider.server.tools.functions import Function, Mode, ToolChoice, read_choice, read_functions
from outrider.server.tools.hermes import HERMES
from outrider.server.tools.llama3 import LLAMA3
from outrider.server.tools.mistral import MISTRAL
from outrider.server.tools.parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart, joined

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = (Function("weather", CITY), Function("now"))
LIST = "[TOOL_CALLS] [{'name'"
NAMED = "[TOOL_CALLS]' + name + '[ARGS]"
SPECIAL = {
    "<|im_end|>": 300, "<|eot_id|>": 301, "<|eom_id|>": 302, "</s>": 303, "<|python_tag|>": 304,
    "[TOOL_CALLS]": 305, "[ARGS]": 306, "[CALL_ID]": 307, "<|end|>": 308,
}  # fmt: skip


def form(template: str, special: Iterable[str] = SPECIAL, prompt: str = "", **changes: Any) -> AnswerFormat:
    tokens = {spelling: SPECIAL.get(spelling, 400) for spelling in special}
    return replace(answer_format(template, tokens, prompt, FUNCTIONS), **changes)


HERMES_FORM = form("<tool_call>", ())
THINKING = form("<tool_call></think>", ())
LLAMA = form('{"name": x, "parameters": y}')
LLAMA_IN_TEXT = form("<|python_tag|>", ())
MISTRAL_FORM = form(LIST)
MISTRAL_IN_TEXT = form(NAMED, ())


@dataclass(frozen=True)
class Call:
    """A call as a reader sees it."""

    name: str
    arguments: str


def read(answer: AnswerFormat, pieces: Iterable[str]) -> list[Part]:
    parser = answer.parser()
    parts = [part for piece in pieces for part in parser.push(piece)]
    return [*parts, *parser.finish()]


def seen(parts: Iterable[Part]) -> list[Content | Reasoning | Call]:
    """What a client sees once everything has arrived, with ids left out."""
    result: list[Content | Reasoning | Call] = []
    for part in joined(parts):
        if isinstance(part, ToolCallStart):
            assert part.index == sum(isinstance(one, Call) for one in result)
            result.append(Call(part.name, ""))
        elif isinstance(part, ToolCallArguments):
            last = result[-1]
            assert isinstance(last, Call)
            assert part.index == sum(isinstance(one, Call) for one in result) - 1
            result[-1] = Call(last.name, last.arguments + part.text)
        else:
            result.append(part)
    return result


def by(size: int, text: str) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


HARD = '{"city": "a \\"}]</tool_call>[TOOL_CALLS]; \\\\", "b": {"c": [1, {"d": "{["}], "e": null}}'
ZURICH, EMPTY = '{"city": "Zürich"}', "{}"
W, N, H = Call("weather", ZURICH), Call("now", EMPTY), Call("weather", HARD)

ANSWERS: dict[str, tuple[AnswerFormat, str, list[Content | Reasoning | Call]]] = {
    # Hermes
    "one": (HERMES_FORM, f'<tool_call>\n{{"name": "weather", "arguments": {ZURICH}}}\n</tool_call>', [W]),
    "two": (
        HERMES_FORM,
        f'I look.\n<tool_call>\n{{"name": "weather", "arguments": {ZURICH}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [Content("I look."), W, N],
    ),
    "two in a burst": (
        HERMES_FORM,
        f'<tool_call>{{"name":"weather","arguments":{ZURICH}}}</tool_call><tool_call>{{"name":"now","arguments":{{}}}}'
        "</tool_call>  then text",
        [W, N, Content("then text")],
    ),
    "hard arguments": (
        HERMES_FORM,
        f'<tool_call>\n{{"name": "weather", "arguments": {HARD}}}\n</tool_call>',
        [Call("weather", HARD)],
    ),
    "arguments first": (HERMES_FORM, f'<tool_call>{{"arguments": {ZURICH}, "name": "weather"}}</tool_call>', [W]),
    "no arguments": (HERMES_FORM, '<tool_call>\n{"name": "now"}\n</tool_call>', [N]),
    "another key": (HERMES_FORM, f'<tool_call>{{"id": [{{"x": 1}}], "name": "weather", "arguments": {ZURICH}}}', [W]),
    "arguments as text": (
        HERMES_FORM,
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>!',
        [Call("now", '"{\\"a\\": 1}"'), Content("!")],
    ),
    "escaped name": (HERMES_FORM, '<tool_call>{"name": "n\\u006fw", "arguments": {}}</tool_call>', [N]),
    "unknown function": (
        HERMES_FORM,
        '<tool_call>{"name": "other", "arguments": {"a": 1}}</tool_call>',
        [Call("other", '{"a": 1}')],
    ),
    "a brace too many": (
        HERMES_FORM,
        '<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>\nok',
        [N, Content("ok")],
    ),
    "a brace too few": (
        HERMES_FORM,
        '<tool_call>{"name": "now", "arguments": {}\n</tool_call>\nok',
        [N, Content("ok")],
    ),
    "broken arguments": (
        HERMES_FORM,
        '<tool_call>{"name": "now", "arguments": {"a": [1}\n</tool_call>ok',
        [Call("now", '{"a": [1}\n'), Content("ok")],
    ),
    "arguments with a tag": (
        HERMES_FORM,
        '<tool_call>{"name": "now", "arguments": {"a": <b>}}</tool_call>ok',
        [Call("now", '{"a": <b>}}'), Content("ok")],
    ),
    "cut in arguments": (HERMES_FORM, '<tool_call>{"name": "now", "arguments": {"a": "b', [Call("now", '{"a": "b')]),
    "cut after the name": (HERMES_FORM, '<tool_call>{"name": "now"', [Call("now", "")]),
    "cut in the name": (HERMES_FORM, 'a\n<tool_call>{"name": "no', [Content('a\n<tool_call>{"name": "no')]),
    "cut in the marker": (HERMES_FORM, "a\n\n<tool_c", [Content("a\n\n<tool_c")]),
    "no call in the tag": (
        HERMES_FORM,
        "The tag <tool_call> begins a call, </tool_call> ends it.\n",
        [Content("The tag <tool_call> begins a call, </tool_call> ends it.\n")],
    ),
    "no name": (
        HERMES_FORM,
        '<tool_call>{"arguments": {}}</tool_call>',
        [Content('<tool_call>{"arguments": {}}</tool_call>')],
    ),
    "name is no text": (
        HERMES_FORM,
        '<tool_call>{"name": 1}</tool_call>',
        [Content('<tool_call>{"name": 1}</tool_call>')],
    ),
    "wrong, then right": (
        HERMES_FORM,
        '<tool_call>oops</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        [Content("<tool_call>oops</tool_call>"), N],
    ),
    "content of newlines": (HERMES_FORM, "a\n\n\nb\n<c>\n", [Content("a\n\n\nb\n<c>\n")]),
    "nothing": (HERMES_FORM, "", []),
    "thought and called": (
        THINKING,
        f'<think>\nHm <tool_call>\n</think>\n\n<tool_call>\n{{"name": "weather", "arguments": {ZURICH}}}\n</tool_call>',
        [Reasoning("Hm <tool_call>"), W],
    ),
    # Hermes without tags, as small models write
    "a code block": (
        HERMES_FORM,
        f'```json\n{{\n  "name": "weather",\n  "arguments": {ZURICH}\n}}\n{{"name": "now"}}\n```\nok',
        [W, N, Content("ok")],
    ),
    "an untagged call": (HERMES_FORM, f' {{"name": "weather", "arguments": {ZURICH}}} ok', [W, Content("ok")]),
    "untagged, then tagged": (HERMES_FORM, '{"name": "now"}<tool_call>{"name": "now"}</tool_call>', [N, N]),
    "untagged and unknown": (HERMES_FORM, '```json\n{"name": "Ann"}\n```', [Content('```json\n{"name": "Ann"}\n```')]),
    "known, then unknown": (HERMES_FORM, '```\n{"name": "now"}\n{"x": 1}\n```', [N, Content('{"x": 1}\n```')]),
    "a block of code": (HERMES_FORM, "```python\nx = {}\n```\n", [Content("```python\nx = {}\n```\n")]),
    "a block of JSON": (HERMES_FORM, '```json\n{"a": 1}\n```', [Content('```json\n{"a": 1}\n```')]),
    "a block later": (
        HERMES_FORM,
        'See\n```json\n{"name": "now"}\n```',
        [Content('See\n```json\n{"name": "now"}\n```')],
    ),
    "a broken block": (
        HERMES_FORM,
        '```json\n{"name": "now", "arguments": {"a": <b>}}\n```ok',
        [Call("now", '{"a": <b>}}'), Content("ok")],
    ),
    "untagged and strict": (
        form("<tool_call>", (), functions=(Function("now", strict=True),)),
        '{"name": "now", "arguments": {}}',
        [Content('{"name": "now", "arguments": {}}')],
    ),
    # Llama
    "bare": (LLAMA, f'{{"name": "weather", "parameters": {ZURICH}}}<|eot_id|>', [W]),
    "several": (LLAMA, f'{{"name": "weather", "parameters": {ZURICH}}}; {{"name": "now", "parameters": {{}}}}', [W, N]),
    "with a type": (LLAMA, f'\n{{"type": "function", "name": "weather", "parameters": {ZURICH}}}', [W]),
    "tagged": (LLAMA, f'<|python_tag|>{{"name": "weather", "parameters": {ZURICH}}}<|eom_id|>', [W]),
    "tagged after text": (
        LLAMA,
        'Sure.\n<|python_tag|>{"name": "any", "parameters": {}}',
        [Content("Sure."), Call("any", "{}")],
    ),
    "tagged twice": (
        LLAMA_IN_TEXT,
        f'<|python_tag|>{{"name": "weather", "parameters": {ZURICH}}} <|python_tag|>{{"name": "now"}}',
        [W, N],
    ),
    "code": (LLAMA, "<|python_tag|>print(1)<|eom_id|>", [Content("print(1)")]),
    "code in text": (LLAMA_IN_TEXT, "<|python_tag|>print(1)", [Content("<|python_tag|>print(1)")]),
    "json": (LLAMA, '{"title": "x", "name": "weather"}', [Content('{"title": "x", "name": "weather"}')]),
    "json with a name": (LLAMA, ' {"name": "Ann", "parameters": {}}', [Content(' {"name": "Ann", "parameters": {}}')]),
    "json later": (LLAMA, 'See {"name": "now", "parameters": {}}', [Content('See {"name": "now", "parameters": {}}')]),
    "broken bare": (LLAMA, '{"name": "now", "parameters": {"a": <b>}}', [Call("now", '{"a": <b>}}')]),
    "hard bare": (LLAMA, f'{{"name": "weather", "parameters": {HARD}}}; {{"name": "now"}}<|eot_id|>', [H, N]),
    "call, then text": (LLAMA, '{"name": "now", "parameters": {}}\n\nDone {x}.', [N, Content("Done {x}.")]),
    # Mistral
    "list": (
        MISTRAL_FORM,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ZURICH}, "id": "abcdefghi"}}, {{"name": "now"}}]</s>',
        [W, N],
    ),
    "list in text": (
        MISTRAL_IN_TEXT,
        f'Hm.\n[TOOL_CALLS][{{"arguments":{ZURICH},"name":"weather"}}]',
        [Content("Hm."), W],
    ),
    "named": (MISTRAL_FORM, f"[TOOL_CALLS]weather{ZURICH}[TOOL_CALLS]now{{}}</s>", [W, N]),
    "named with args": (
        MISTRAL_IN_TEXT,
        f"[TOOL_CALLS]weather[ARGS]{ZURICH}[TOOL_CALLS]now[ARGS]{{}} ok",
        [W, N, Content("ok")],
    ),
    "named with an id": (MISTRAL_FORM, f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{ZURICH}", [W]),
    "hard list": (
        MISTRAL_FORM,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {HARD}}}, {{"name": "now"}}]',
        [H, N],
    ),
    "hard named": (MISTRAL_FORM, f"[TOOL_CALLS]weather[ARGS]{HARD}[TOOL_CALLS]now{{}}", [H, N]),
    "empty list": (MISTRAL_FORM, "[TOOL_CALLS] []ok", [Content(" []ok")]),
    "no name there": (MISTRAL_IN_TEXT, "[TOOL_CALLS] what?", [Content("[TOOL_CALLS] what?")]),
    "a list cut short": (
        MISTRAL_FORM,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ZURICH}}}, {{"na',
        [W, Content('{"na')],
    ),
    "broken in a list": (
        MISTRAL_FORM,
        '[TOOL_CALLS] [{"name": "now", "arguments": {"a": <b>}}][TOOL_CALLS]now{}',
        [Call("now", '{"a": <b>}}]'), N],
    ),
    "stray specials": (MISTRAL_FORM, "a[ARGS]b<|end|>c", [Content("abc")]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_becomes_its_parts(name: str) -> None:
    answer, text, expected = ANSWERS[name]
    assert seen(read(answer, [text])) == expected


@pytest.mark.parametrize("name", ANSWERS)
def test_bursts_of_any_size_give_the_same_parts(name: str) -> None:
    answer, text, expected = ANSWERS[name]
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 13):
        assert seen(read(answer, by(size, text))) == expected, size


@settings(max_examples=500, deadline=None)
@given(
    name=st.sampled_from(sorted(ANSWERS)),
    cut=st.integers(0, 200),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_every_way_of_cutting_gives_the_same_parts(name: str, cut: int, cuts: list[int]) -> None:
    """Also for every beginning of an answer, as ``max_tokens`` makes them."""
    answer, text, _ = ANSWERS[name]
    text = text[: len(text) - cut] if cut < len(text) else text
    edges = sorted({0, len(text), *(at for at in cuts if at < len(text))})
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert seen(read(answer, pieces)) == seen(read(answer, [text]))


PIECES = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>", "</think>"),
    *(
        "```",
        "```json",
        "<",
        "</",
        "[TOOL",
        "\n",
        "\n\n",
        " ",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        ";",
        '"',
        "\\",
        "\\\\",
        "a",
        "<|eot_id|>",
    ),
    *(
        '"name"',
        '"arguments"',
        '"parameters"',
        '{"name": "now", ',
        '"arguments": {}}',
        '{"name": "weather"}',
        "now",
        "1",
    ),
]
FORMS = [
    HERMES_FORM,
    THINKING,
    LLAMA,
    LLAMA_IN_TEXT,
    MISTRAL_FORM,
    MISTRAL_IN_TEXT,
    replace(THINKING, reasoning_open=True),
]


@settings(max_examples=500, deadline=None)
@given(
    place=st.integers(0, len(FORMS) - 1),
    pieces=st.lists(st.sampled_from(PIECES), max_size=25),
    seed=st.integers(0, 2**32),
)
def test_any_text_is_read_without_an_error_and_alike_however_it_is_cut(
    place: int, pieces: list[str], seed: int
) -> None:
    answer, text, dice = FORMS[place], "".join(pieces), random.Random(seed)
    expected = seen(read(answer, [text]))
    edges = sorted({0, len(text), *(dice.randrange(len(text) + 1) for _ in range(dice.randrange(12)))})
    cut = [text[start:end] for start, end in pairwise(edges)]
    assert seen(read(answer, cut)) == seen(read(answer, text)) == seen(read(answer, pieces)) == expected


@settings(max_examples=120, deadline=None)
@given(
    arguments=st.lists(
        st.dictionaries(
            st.text(max_size=5),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(PIECES),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                max_leaves=6,
            ),
            max_size=3,
        ),
        min_size=1,
        max_size=3,
    ),
    indent=st.sampled_from([None, 1]),
    size=st.sampled_from([1, 2, 3, 5, 8, 1000]),
)
def test_arguments_arrive_as_the_model_wrote_them(
    arguments: list[dict[str, Any]], indent: int | None, size: int
) -> None:
    written = [json.dumps(one, indent=indent, ensure_ascii=False) for one in arguments]
    expected = [Call("now", text) for text in written]
    hermes = "\n".join(f'<tool_call>\n{{"name": "now", "arguments": {text}}}\n</tool_call>' for text in written)
    llama = "; ".join(f'{{"name": "now", "parameters": {text}}}' for text in written)
    listed = ", ".join(f'{{"name": "now", "arguments": {text}}}' for text in written)
    named = "".join(f"[TOOL_CALLS]now[ARGS]{text}" for text in written)
    for answer, text in (
        (HERMES_FORM, hermes),
        (LLAMA_IN_TEXT, llama),
        (MISTRAL_IN_TEXT, f"[TOOL_CALLS] [{listed}]"),
        (MISTRAL_IN_TEXT, named),
    ):
        assert seen(read(answer, by(size, text))) == expected


TWO_CALLS = {
    "hermes": (
        HERMES_FORM,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich \\"{x}\\" 🎉", "days": [1, 2]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {"zone": {"name": "CET", "offset": 1.0}}}\n</tool_call>',
    ),
    "llama": (
        LLAMA,
        '{"name": "weather", "parameters": {"city": "Zürich \\"{x}\\" 🎉", "days": [1, 2]}}; '
        '{"name": "now", "parameters": {"zone": {"name": "CET", "offset": 1.0}}}<|eot_id|>',
    ),
    "mistral list": (
        MISTRAL_FORM,
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Zürich \\"{x}\\" 🎉", "days": [1, 2]}}, '
        '{"name": "now", "arguments": {"zone": {"name": "CET", "offset": 1.0}}}]</s>',
    ),
    "mistral": (
        MISTRAL_FORM,
        '[TOOL_CALLS]weather[ARGS]{"city": "Zürich \\"{x}\\" 🎉", "days": [1, 2]}[TOOL_CALLS]now[ARGS]'
        '{"zone": {"name": "CET", "offset": 1.0}}</s>',
    ),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("unit", ["characters", "tokens"])
@pytest.mark.parametrize("name", TWO_CALLS)
def test_two_calls_survive_the_bursts_of_a_round(name: str, unit: str, size: int) -> None:
    """A round may complete several tokens, the end of one call and the beginning of the next among them."""
    answer, text = TWO_CALLS[name]
    tokens = list(text) if unit == "characters" else re.findall(r"<\|?/?\w+\|?>|\[[A-Z_]+\]| ?\w+|\W", text)
    bursts = ["".join(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert "".join(bursts) == text
    parts = read(answer, bursts)
    starts = [part for part in parts if isinstance(part, ToolCallStart)]
    assert [(start.index, start.name) for start in starts] == [(0, "weather"), (1, "now")]
    deltas = [[part.text for part in parts if isinstance(part, ToolCallArguments) and part.index == i] for i in (0, 1)]
    whole = [one for one in seen(read(answer, [text])) if isinstance(one, Call)]
    assert ["".join(each) for each in deltas] == [call.arguments for call in whole]
    assert json.loads("".join(deltas[0])) == {"city": 'Zürich "{x}" 🎉', "days": [1, 2]}
    assert json.loads("".join(deltas[1])) == {"zone": {"name": "CET", "offset": 1.0}}
    assert not any(isinstance(part, Content) for part in parts)
    assert len(deltas[0]) >= len(text) // 30 // size


@pytest.mark.parametrize("half", ["\\ud800", "\\udfff", "a\\udc00b", "\\ud83d\\ud83d"])
@pytest.mark.parametrize("name", TWO_CALLS)
def test_half_a_surrogate_pair_leaves_the_parser_in_no_part(name: str, half: str) -> None:
    """JSON can spell it, and no answer can be sent with it."""
    answer, text = TWO_CALLS[name]
    for spelled in ("weather", "arguments", "parameters", "city", "Zürich"):
        for size in (1, 1000):
            for part in read(answer, by(size, text.replace(spelled, half))):
                str(getattr(part, "name", "")).encode()
                str(getattr(part, "text", "")).encode()


def test_nothing_is_held_back_but_what_may_begin_a_marker() -> None:
    parser = HERMES_FORM.parser()
    assert parser.push("Hello ") == [Content("Hello ")]
    assert parser.push("a < b\n") == [Content("a < b")]
    assert parser.push("<b>") == [Content("\n<b>")]
    assert parser.push("<tool_") == []
    assert parser.push("box>") == [Content("<tool_box>")]
    assert parser.push('\n<tool_call>\n{"name": "now') == []
    (start,) = parser.push('"')
    assert isinstance(start, ToolCallStart)
    assert parser.push(', "arguments": {"a": "x') == [ToolCallArguments(0, '{"a": "x')]
    assert parser.push("\\") == [ToolCallArguments(0, "\\")]
    assert parser.push('"y"') == [ToolCallArguments(0, '"y"')]
    assert parser.push("}}\n</tool_call>") == [ToolCallArguments(0, "}")]
    assert parser.finish() == []


def test_json_is_no_longer_held_back_than_it_may_be_a_call() -> None:
    parser = LLAMA.parser()
    assert parser.push('{"title"') == [Content('{"title"')]
    assert parser.push(": 1") == [Content(": 1")]
    parser = LLAMA.parser()
    assert parser.push('{"name": "nobody"') == [Content('{"name": "nobody"')]


def test_every_call_has_an_id_of_its_own() -> None:
    answer, text, _ = ANSWERS["two"]
    ids = {part.id for _ in range(5) for part in read(answer, by(3, text)) if isinstance(part, ToolCallStart)}
    assert len(ids) == 10
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", one) for one in ids)
    answer, text, _ = ANSWERS["list"]
    ids = {part.id for part in read(answer, [text]) if isinstance(part, ToolCallStart)}
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", one) for one in ids), "as the template demands when they come back"


def test_without_functions_calls_are_text() -> None:
    text = '<tool_call>{"name": "now"}</tool_call>\n'
    answer = answer_format("<tool_call>", SPECIAL, "")
    assert answer.family is None
    assert seen(read(answer, by(2, text))) == [Content(text)]
    assert read(answer, ["a\n"])[0] == Content("a\n")


def test_a_long_answer_is_read_in_time_that_grows_with_its_length() -> None:
    """Not with its square: twenty times the text, far less than four hundred times the work."""
    import time

    def seconds(size: int) -> float:
        text = (
            f'<tool_call>{{"name": "now", "arguments": {{"a": "{"x" * size}"}}}}</tool_call>' + "\n" * size + "b" * size
        )
        best = 9.0
        for _ in range(3):
            start = time.perf_counter()
            read(HERMES_FORM, by(4, text))
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(4000) < 120 * seconds(200)


# Which family


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("chatml", HERMES),
        ("thinking that is dropped", HERMES),
        ("dates and indented json", LLAMA3),
        ("alternating roles", MISTRAL),
        ("parts", HERMES),
    ],
)
def test_a_family_is_known_by_its_template(template: str, family: Any) -> None:
    assert find_family(TEMPLATES[template], {}) is family


def test_special_tokens_decide_where_the_template_does_not() -> None:
    assert find_family("", {"[TOOL_CALLS]": 5}) is MISTRAL
    assert find_family("", {"<|python_tag|>": 5}) is LLAMA3
    assert find_family("<tool_call>", {"<|python_tag|>": 5}) is HERMES
    assert find_family("", {}) is HERMES


def test_special_tokens_are_needed_where_a_marker_is_one() -> None:
    assert not answer_format("<tool_call>", {"<|im_end|>": 1}, "", FUNCTIONS).needs_special_tokens
    assert answer_format("<tool_call>", {"<tool_call>": 1}, "", FUNCTIONS).needs_special_tokens
    assert not answer_format("<tool_call>", {"<tool_call>": 1}, "").needs_special_tokens
    assert answer_format("</think>", {"</think>": 1}, "").needs_special_tokens
    assert LLAMA.needs_special_tokens


def test_every_family_is_found_by_its_markers() -> None:
    for family in FAMILIES:
        assert find_family(" ".join(family.markers), {}) is family


# Functions and choices

TOOL = {"type": "function", "function": {"name": "now"}}


def test_functions_are_read_as_users_give_them() -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "a-B_9", "parameters": CITY, "strict": True}}]
    assert read_functions(tools) == (Function("now"), Function("a-B_9", CITY, strict=True))
    assert read_functions([{"function": {"name": "now", "parameters": None, "strict": None}}]) == (Function("now"),)
    assert read_functions(None) == ()


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"type": "retrieval"}], "type 'function', not 'retrieval'"),
        (["now"], r"tools\[0\] must have the type"),
        ([TOOL, {"type": "function"}], r"tools\[1\] must describe its function by a dict, not None"),
        ([{"type": "function", "function": {"name": "a b"}}], "1 to 64 letters, digits, _ or -, not 'a b'"),
        ([{"type": "function", "function": {"name": "a" * 65}}], "1 to 64"),
        ([{"type": "function", "function": {"name": "now\n"}}], "1 to 64"),
        ([{"type": "function", "function": {}}], "1 to 64"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], "JSON schema as parameters"),
        ([TOOL, TOOL], "two functions named 'now'"),
    ],
)
def test_wrong_functions_are_refused(tools: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_functions(tools)


def test_choices_are_read() -> None:
    assert read_choice(None, ()) == ToolChoice(Mode.NONE)
    assert read_choice(None, FUNCTIONS) == ToolChoice(Mode.AUTO)
    assert read_choice("none", FUNCTIONS) == ToolChoice(Mode.NONE)
    assert read_choice("required", FUNCTIONS) == ToolChoice(Mode.REQUIRED)
    assert read_choice(TOOL, FUNCTIONS) == ToolChoice(Mode.REQUIRED, "now")
    assert read_choice({"type": "function", "name": "now"}, FUNCTIONS) == ToolChoice(Mode.REQUIRED, "now")


@pytest.mark.parametrize(
    ("choice", "functions", "message"),
    [
        ("any", FUNCTIONS, "must be auto, none, required or a function, not 'any'"),
        (1, FUNCTIONS, "not 1"),
        ("required", (), "has no tools"),
        ({"type": "function"}, FUNCTIONS, "tool_choice must be"),
        ({"type": "function", "function": {"name": "x"}}, FUNCTIONS, "names 'x', which is not among the tools"),
    ],
)
def test_wrong_choices_are_refused(choice: Any, functions: Sequence[Function], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_choice(choice, functions)
