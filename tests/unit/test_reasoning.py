"""Reasoning apart from the answer, in whatever pieces it arrives."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from chat_templates import CONVERSATIONS, TEMPLATES
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.server.reasoning import KNOWN, find_markers, opened_by
from outrider.server.tools.answer import AnswerFormat, answer_format
from outrider.server.tools.parts import Content, Part, Reasoning, joined

SPECIAL = {"<|im_end|>": 5, "<|im_start|>": 6}
QWEN3 = "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}"
ASKED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
FREE = answer_format(QWEN3, SPECIAL, ASKED)
OPENED = answer_format(QWEN3, SPECIAL, f"{ASKED}<think>\n")
TOKENS = answer_format(QWEN3, SPECIAL | {"<think>": 7, "</think>": 8}, ASKED)
MISTRAL = answer_format("[THINK] [/THINK]", {"[THINK]": 7, "[/THINK]": 8}, "[INST]Hi[/INST]")

ANSWERS: dict[str, tuple[AnswerFormat, str, list[Part]]] = {
    "both": (FREE, "<think>\nHm.\n\nYes.\n</think>\n\nHello\n", [Reasoning("Hm.\n\nYes."), Content("Hello\n")]),
    "opened": (OPENED, "Hm.\n</think>\n\nHello", [Reasoning("Hm."), Content("Hello")]),
    "opened twice": (OPENED, "<think>\nHm.\n</think>Hello", [Reasoning("Hm."), Content("Hello")]),
    "special tokens": (TOKENS, "<think>\nHm.\n</think>\n\nHello<|im_end|>", [Reasoning("Hm."), Content("Hello")]),
    "mistral": (MISTRAL, "[THINK]a [list] of\n[/THINK]Hello", [Reasoning("a [list] of"), Content("Hello")]),
    "none": (FREE, "\n Hello\n", [Content("\n Hello\n")]),
    "empty": (FREE, "<think>\n\n</think>\n\nHello", [Content("Hello")]),
    "indented": (FREE, "<think>a</think>\n\n  x", [Reasoning("a"), Content("  x")]),
    "later": (FREE, "Write <think>x</think>.", [Content("Write <think>x</think>.")]),
    "twice": (FREE, "<think>a</think>b<think>c</think>", [Reasoning("a"), Content("b<think>c</think>")]),
    "nested": (FREE, "<think>a<think>b</think>c", [Reasoning("a<think>b"), Content("c")]),
    "cut": (FREE, "<think>\nHm.\n</thi", [Reasoning("Hm.\n</thi")]),
    "cut at once": (FREE, "<thi", [Content("<thi")]),
    "opened and cut": (OPENED, "Hm", [Reasoning("Hm")]),
    "another model's": (answer_format("", SPECIAL, ASKED), "<think>a</think>b", [Content("<think>a</think>b")]),
    "nothing": (OPENED, "", []),
}


def read(answer: AnswerFormat, pieces: Iterable[str]) -> list[Part]:
    parser = answer.parser()
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined([*parts, *parser.finish()])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_reasoning_is_a_part_of_its_own(name: str, size: int) -> None:
    answer, text, expected = ANSWERS[name]
    assert read(answer, [text[at : at + size] for at in range(0, len(text), size)]) == expected


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(["<think>", "</think>", "<", "</", "think", ">", "\n", "\n\n", " ", "a", "<|im_end|>"]),
        max_size=15,
    ),
    place=st.integers(0, 3),
)
def test_any_text_is_read_alike_however_it_is_cut(pieces: list[str], place: int) -> None:
    answer, text = (FREE, OPENED, TOKENS, MISTRAL)[place], "".join(pieces)
    assert read(answer, [text]) == read(answer, pieces) == read(answer, text)


def test_reasoning_streams_and_tells_whether_it_is_open() -> None:
    """A token counts as reasoning if reasoning was open before it."""
    parser = FREE.parser()
    seen = []
    for piece in ("<think>", "\n", "Hm", ",", " yes", "\n", "</think>", "\n\n", "Hello", "."):
        before = parser.reasoning_open
        seen.append((before, parser.push(piece)))
    assert [before for before, _ in seen] == [False, True, True, True, True, True, True, False, False, False]
    texts = [part.text for _, parts in seen for part in parts if isinstance(part, Reasoning)]
    assert texts == ["Hm", ",", " yes"]
    assert [part for _, parts in seen[7:] for part in parts] == [Content("Hello"), Content(".")]
    assert OPENED.parser().reasoning_open
    assert not TOKENS.parser().reasoning_open


# Whose prompt opens it


def test_a_prompt_opens_reasoning_only_at_its_end() -> None:
    markers, tokens = KNOWN[0], SPECIAL.keys()
    assert opened_by(f"{ASKED}<think>", markers, tokens)
    assert opened_by(f"{ASKED}<think>\n", markers, tokens)
    assert opened_by(f"{ASKED}<think>\nGoing on", markers, tokens), "an answer that is continued"
    assert not opened_by(ASKED, markers, tokens)
    assert not opened_by(f"{ASKED}<think>\n\n</think>\n\n", markers, tokens)
    assert not opened_by("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", markers, tokens)
    assert not opened_by("", markers, tokens)


def test_markers_are_known_by_the_template_or_the_tokens() -> None:
    assert find_markers(TEMPLATES["thinking that is dropped"], ()) == KNOWN[0]
    assert find_markers(TEMPLATES["chatml"], ()) is None
    assert find_markers(TEMPLATES["chatml"], {"</think>"}) == KNOWN[0]
    assert find_markers("[THINK]x[/THINK]", ()) == KNOWN[1]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_template_that_closes_reasoning_leaves_an_answer(thinking: bool) -> None:
    from byte_text import byte_tokenizer

    from outrider.models.files.tokenizer import Tokenizer

    template = TEMPLATES["thinking that is dropped"]
    tokenizer = Tokenizer(byte_tokenizer().backend, name="thinker", chat_template=template)
    prompt = tokenizer.apply_chat_template(CONVERSATIONS["one question"], template_kwargs={"enable_thinking": thinking})
    answer = answer_format(template, SPECIAL, prompt)
    assert not answer.reasoning_open
    assert read(answer, ["Hello"]) == [Content("Hello")]
    assert read(answer, ["<think>\nHm</think>Hello"]) == [Reasoning("Hm"), Content("Hello")]
