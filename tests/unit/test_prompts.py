"""Prompt files: every shape for every command, lines and errors, and the prompts that come with Outrider."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from byte_text import byte_tokenizer
from tiny_folder import TEMPLATE

from outrider.audit.prompts import STRANGE
from outrider.audit.prompts import audit_prompts as audited
from outrider.bench.prompts import form
from outrider.bench.prompts import selected_prompts as benched
from outrider.errors import ConfigError, ModelError
from outrider.models.files.tokenizer import Tokenizer
from outrider.prompts import Prompt, built_in, read
from outrider.prompts.prompt import Messages
from outrider.train.data.decontaminate import EvaluationPrompts, evaluation_prompts
from outrider.train.data.prompts import training_prompts as trained_on

ASKED = "What is a lighthouse for?"
SEPARATED = "One line,\u2028another,\u2029a third,\x85a fourth\x0band\x0cso on"
"""Marks that end lines elsewhere, raw inside of a JSON string."""
SYSTEM, USER, ANSWER = ("system", "Be brief."), ("user", ASKED), ("assistant", "For ships.")
AGAIN = ("user", "Since when?")


def openai(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def sharegpt(*turns: tuple[str, str]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return {"conversations": [{"from": names[role], "value": content} for role, content in turns]}


QUESTION, HISTORY = (USER,), (SYSTEM, USER, ANSWER, AGAIN)
SHAPES: dict[str, tuple[Any, Messages, Messages]] = {
    "prompt": ({"prompt": ASKED}, QUESTION, QUESTION),
    "turns": ({"turns": [ASKED, "Since when?"]}, QUESTION, QUESTION),
    "a question": (openai(USER), QUESTION, QUESTION),
    "an answered question": (openai(USER, ANSWER), QUESTION, QUESTION),
    "a conversation": (openai(*HISTORY), HISTORY, HISTORY),
    "an answered conversation": (openai(*HISTORY, ANSWER), (SYSTEM, USER), HISTORY),
    "ShareGPT": (sharegpt(SYSTEM, USER, ANSWER, AGAIN, ANSWER), (SYSTEM, USER), HISTORY),
    "a ShareGPT question": (sharegpt(USER), QUESTION, QUESTION),
    "named": ({"id": 7, "category": "sea", "prompt": ASKED, "text": "no"}, QUESTION, QUESTION),
    "null beside it": ({"messages": None, "prompt": None, "turns": [ASKED]}, QUESTION, QUESTION),
    "separators": ({"prompt": SEPARATED}, (("user", SEPARATED),), (("user", SEPARATED),)),
    "text": ({"text": ASKED}, (), ()),
}
"""What a file holds, what a measurement asks, and what is trained on; the text goes bare."""


def as_lines(values: Iterable[Any]) -> str:
    return "\n".join(json.dumps(value, ensure_ascii=False) for value in values) + "\n"


def as_array(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False)


def as_indented_array(values: Iterable[Any]) -> str:
    return json.dumps(list(values), ensure_ascii=False, indent=1) + "\n"


FORMS = {"lines": as_lines, "array": as_array, "indented": as_indented_array}
MEASURED = {"bench and study": lambda path: benched(path, None, None), "audit": lambda path: list(audited(path))}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str, name: str = "mine.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return written


@pytest.mark.parametrize("form_", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
class TestEveryShape:
    @pytest.mark.parametrize("command", MEASURED)
    def test_is_asked(self, command: str, shape: str, form_: str, write: Callable[[str], Path]) -> None:
        value, asked, _ = SHAPES[shape]
        found = MEASURED[command](write(FORMS[form_]([{"prompt": "first"}, value])))
        assert [prompt.messages for prompt in found] == [(("user", "first"),), asked]
        assert found[1].text == ("" if asked else ASKED)

    def test_is_trained_on(self, shape: str, form_: str, write: Callable[[str], Path]) -> None:
        value, _, whole = SHAPES[shape]
        found = trained_on([write(FORMS[form_]([{"prompt": "first"}, value]))], EvaluationPrompts(frozenset()))
        assert [prompt.messages for prompt in found] == [(("user", "first"),), whole]
        assert found[1].text == ("" if whole else ASKED)


@pytest.mark.parametrize("text", [f"{ASKED}\n\n  Why?\r\n", f"\ufeff{ASKED}\nWhy?", f"\n{ASKED}\n \nWhy?\n\n"])
def test_plain_text_is_a_question_a_line(text: str, write: Callable[..., Path]) -> None:
    path = write(text, "mine.txt")
    whole = [(USER,), (("user", "Why?"),)]
    assert [prompt.messages for prompt in benched(path, None, None)] == whole
    assert [prompt.messages for prompt in audited(path)] == whole
    assert [prompt.messages for prompt in trained_on([path], EvaluationPrompts(frozenset()))] == whole


def test_plain_lines_end_at_newlines_alone(write: Callable[..., Path]) -> None:
    found = list(read(write(f"{SEPARATED}\nWhy?", "mine.txt")))
    assert [prompt.messages[0][1] for prompt in found] == [SEPARATED, "Why?"]


def test_names_are_read_or_given_and_none_twice(write: Callable[..., Path]) -> None:
    values = [
        {"id": "a", "category": "sea", "prompt": "1"},
        {"question_id": 81, "prompt": "2"},
        {"task_id": "HumanEval/0", "prompt": "3"},
        {"id": "a", "prompt": "4"},
        {"prompt": "5"},
    ]
    found = list(read(write(as_lines(values), "harbour.jsonl")))
    assert [prompt.id for prompt in found] == ["a", "81", "HumanEval/0", "a (prompt 3)", "4"]
    assert [prompt.category for prompt in found] == ["sea"] + ["harbour"] * 4
    assert [prompt.number for prompt in found] == [0, 1, 2, 3, 4]


BROKEN = {
    "cut": "{",
    "number": "3",
    "list": '[{"prompt": "x"}]',
    "nothing": "{}",
    "wrong key": '{"question": "x"}',
    "empty prompt": '{"prompt": " "}',
    "empty turns": '{"turns": []}',
    "turns of numbers": '{"turns": [1]}',
    "turns of text": '{"turns": "why"}',
    "prompt of numbers": '{"prompt": 3}',
    "no role": '{"messages": [{"content": "x"}]}',
    "strange role": '{"messages": [{"role": "robot", "content": "x"}]}',
    "role of a list": '{"messages": [{"role": ["user"], "content": "x"}]}',
    "content in parts": '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
    "text for messages": '{"messages": "hi"}',
    "no messages": '{"messages": []}',
    "answer alone": '{"messages": [{"role": "assistant", "content": "x"}]}',
    "ends with the system": '{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}',
    "empty conversation": '{"conversations": []}',
    "OpenAI's keys in ShareGPT's": '{"conversations": [{"role": "user", "content": "x"}]}',
    "half a character": '{"prompt": "\\ud83d"}',
    "too deep": '{"prompt": ' + "[" * 100_000,
    "plain text": "Why?",
}
COMMANDS: dict[str, Callable[[Path], Any]] = {
    **MEASURED,
    "train": lambda path: trained_on([path], EvaluationPrompts(frozenset())),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN)
def test_a_line_that_is_no_prompt_is_named_with_its_file(command: str, line: str, write: Callable[[str], Path]) -> None:
    path = write(f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(ConfigError, match=r"mine\.jsonl: line 3\b") as caught:
        COMMANDS[command](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[\n{"prompt": "a"},\n{"prompt": "b"},\n{"question": "c"}\n]', "line 4, entry 3"),
        ('[{"prompt": "a"}, {"question": "c"}]', "line 1, entry 2"),
        ('[\n{"prompt": "a"}\n{"prompt": "b"}\n]', "line 2 must be followed"),
        ('[\n{"prompt": "a"},\n', "line 3"),
        ('[\n{"prompt": "a"}', "line 2 must be followed"),
        ('[\n{"prompt": "a"}\n]\n[]', "line 3"),
        ('[\n{"prompt": "a"},\n{"prompt": \n', "line 3, entry 2 is not a JSON"),
        ("[1]", "line 1 is not a JSON object"),
        ("Why?", "line 1 is not a JSON object"),
    ],
)
def test_an_entry_that_is_no_prompt_is_named_by_its_line(text: str, place: str, write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=rf"mine\.json: {place}"):
        list(read(write(text, "mine.json")))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ["", "\n \n", "[]", "[ ]\n"])
def test_a_file_without_prompts_is_named(command: str, text: str, write: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"no prompt.*mine\.x|mine\.x has no prompts"):
        COMMANDS[command](write(text, "mine.x"))


@pytest.mark.parametrize("command", COMMANDS)
def test_bytes_that_are_no_text_are_named(command: str, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine\.txt cannot be read"):
        COMMANDS[command](tmp_path / "mine.txt")


def test_lines_past_the_limit_are_not_looked_at(write: Callable[[str], Path]) -> None:
    path = write('{"prompt": "a"}\n{"prompt": "b"}\nbroken\n')
    assert [prompt.number for prompt in benched(path, "i==1", 1)] == [1]


class TestEncode:
    plain = byte_tokenizer()
    chat = Tokenizer(plain.backend, name="chat", chat_template=TEMPLATE)
    talk = Prompt(0, "", "", HISTORY)

    def ids(self, text: str) -> list[int]:
        return self.plain.encode(text)

    def test_a_conversation_goes_through_the_template_or_bare(self) -> None:
        spelled = "".join(f"<|{role}|>{content}" for role, content in HISTORY) + "<|assistant|>"
        assert self.talk.encode(self.chat, chat=True) == self.ids(spelled)
        assert self.talk.encode(self.chat, chat=False) == self.ids("\n\n".join(content for _, content in HISTORY))
        with pytest.raises(ModelError, match="no chat template"):
            self.talk.encode(self.plain, chat=True)

    def test_bare_text_stays_bare(self) -> None:
        bare = Prompt(0, "", "", text=ASKED)
        assert bare.encode(self.chat, chat=True) == bare.encode(self.chat, chat=False) == self.ids(ASKED)

    def test_the_form_is_recorded(self) -> None:
        told = form([self.talk, Prompt(0, "", "", text=ASKED)], chat=True)
        assert (told["bare_texts"], told["with_history"], told["prompts_with_code_prefix"]) == (1, 1, 0)


class TestBuiltIn:
    def test_there_are_three_of_each_kind_in_turns(self) -> None:
        kinds = [prompt.category for prompt in built_in()]
        assert kinds == ["code", "chat", "edit", "translate", "extract", "maths"] * 3
        assert len({prompt.id for prompt in built_in()}) == len(kinds)

    def test_they_are_what_a_command_without_a_file_asks(self) -> None:
        assert benched(None, None, None) == list(built_in())
        assert [prompt.id for prompt in benched(None, "i%6==0", 2)] == ["code-1", "code-2"]
        with pytest.raises(ConfigError, match="no prompt is left of the 18 in built-in prompts"):
            benched(None, "i>99", None)
        assert audited(None)[: len(STRANGE)] == tuple(
            Prompt(place, f"strange-{place + 1}", "strange", text=text) for place, text in enumerate(STRANGE)
        )
        assert audited(None)[len(STRANGE) :] == built_in()

    @pytest.mark.parametrize("prompt", built_in(), ids=lambda prompt: prompt.id)
    def test_none_may_be_trained_on(self, prompt: Prompt, write: Callable[[str], Path]) -> None:
        question = prompt.turns[0]["content"]
        with pytest.raises(ConfigError, match=r"line 2 contains the words .* of an evaluation prompt"):
            trained_on([write(as_lines([{"prompt": "What is tea?"}, {"text": f"Please: {question}"}]))])

    @pytest.mark.parametrize("prompt", built_in(), ids=lambda prompt: prompt.id)
    def test_none_is_in_a_set_that_models_are_judged_by(self, prompt: Prompt) -> None:
        others = (
            evaluation_prompts().hashes - EvaluationPrompts.of(each.turns[0]["content"] for each in built_in()).hashes
        )
        assert len(others) > 10_000
        assert EvaluationPrompts(others).found_in(prompt.turns[0]["content"]) is None
