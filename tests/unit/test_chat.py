"""Conversations: one or several, tools, what a template is told, and answers at once or piece by piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from byte_text import SIZE, byte_tokenizer
from tiny import tiny_model

from outrider import LLM, ModelError, RequestError, SamplingParams
from outrider.models.files.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if tools %}[{{ tools | length }} tools]{% endif %}{{ mood }}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]
GREEDY = SamplingParams(max_tokens=6)


def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: one.
        y: the other.
    """
    return x + y


def chatty() -> Tokenizer:
    plain = byte_tokenizer()
    return Tokenizer(plain.backend, name="chatty", eos_ids=plain.eos_ids, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.from_model(tiny_model(0, SIZE), chatty())


def written(llm: LLM, messages: Any, **told: Any) -> str:
    return byte_tokenizer().decode(llm.chat(messages, GREEDY, **told).prompt_token_ids)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        HI,
        tuple(HI),
        iter(HI),
        HI[0],
        [SimpleNamespace(model_dump=lambda exclude_none: HI[0])],
        [{"role": "user", "content": "hi", "name": "Ada"}],
    ],
)
def test_one_conversation_in_every_shape(messages: Any, llm: LLM) -> None:
    done = llm.chat(messages, GREEDY)
    assert byte_tokenizer().decode(done.prompt_token_ids) == "user:hi;assistant:"
    assert done.token_ids == llm.generate("user:hi;assistant:", GREEDY)[0].token_ids


def test_several_conversations_are_answered_side_by_side(llm: LLM) -> None:
    other = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ha"}]
    alone = [llm.chat(HI, GREEDY), llm.chat(other, GREEDY)]
    for several in ([HI, other], (tuple(HI), other)):
        done = llm.chat(several, GREEDY)
        assert [one.token_ids for one in done] == [one.token_ids for one in alone]
        assert [one.prompt_token_ids for one in done] == [one.prompt_token_ids for one in alone]
    one = llm.chat([HI], [{"max_tokens": 2}], ignore_eos=True)
    assert [len(done.token_ids) for done in one] == [2]
    with pytest.raises(RequestError, match="got 2 sets of parameters for 1 prompt; give one for all"):
        llm.chat([HI], [GREEDY, GREEDY])


def test_an_answer_piece_by_piece(llm: LLM) -> None:
    want = llm.chat(HI, GREEDY)
    *_, last = llm.chat(HI, GREEDY, stream=True)
    assert last.choice is not None
    assert last.choice.token_ids == want.token_ids
    assert "".join(chunk.text for chunk in llm.chat("hi", stream=True, max_tokens=6)) == want.text
    with pytest.raises(RequestError, match="stream=True takes one conversation, but got 2"):
        llm.chat([HI, HI], stream=True)  # type: ignore[call-overload]


def test_the_template_is_told(llm: LLM) -> None:
    said = [*HI, {"role": "assistant", "content": "ha"}]
    assert written(llm, HI, add_generation_prompt=False) == "user:hi;"
    assert written(llm, said, continue_final_message=True) == "user:hi;assistant:ha"
    assert written(llm, HI, tools=[{"type": "function"}, add]) == "user:hi;[2 tools]assistant:"
    assert written(llm, HI, tools=[]) == "user:hi;assistant:"
    assert written(llm, HI, chat_template_kwargs={"mood": "!"}) == "user:hi;!assistant:"
    tools = iter([{"type": "function"}])
    both = llm.chat([HI, HI], GREEDY, tools=tools)
    assert both[0].prompt_token_ids == both[1].prompt_token_ids
    assert llm.encode_chat(HI, tools=[add]) == byte_tokenizer().encode("user:hi;[1 tools]assistant:")


class Heard(Tokenizer):
    """Keeps what it is asked to write."""

    def apply_chat_template(self, messages: Any, **told: Any) -> str:
        self.heard = (messages, told)
        return "x"


def heard(messages: Any, **told: Any) -> tuple[Any, dict[str, Any]]:
    plain = byte_tokenizer()
    tokenizer = Heard(plain.backend, name="heard", eos_ids=plain.eos_ids)
    LLM.from_model(tiny_model(0, SIZE), tokenizer).chat(messages, max_tokens=1, **told)
    return tokenizer.heard


def test_messages_reach_the_tokenizer_whole() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
    ]
    got, told = heard(messages)
    called = {**messages[1], "tool_calls": [{**call, "function": {"name": "f", "arguments": {"x": 1}}}]}
    assert got == [messages[0], called, messages[2]]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}, "what was given was changed"
    assert told == {
        "tools": None,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "template_kwargs": {},
    }
    _, told = heard("hi", tools=(add,), continue_final_message=True, chat_template_kwargs={"enable_thinking": False})
    assert told == {
        "tools": [add],
        "add_generation_prompt": False,
        "continue_final_message": True,
        "template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "a text or a list of messages, not None"),
        (5, "a text or a list of messages, not 5"),
        (b"hi", "a text or a list of messages"),
        ([], "messages is empty"),
        ([[]], r"messages\[0\] is empty"),
        (["hi", "there"], r"messages\[0\] must be a dict with role and content, not 'hi'"),
        ([HI, HI[0]], r"messages\[0\] must be a dict"),
        ([HI, [{"content": "a"}]], r"messages\[1\]\[0\] has no role"),
        ({"messages": HI}, "the message has no role"),
        ([{"role": "user"}], r"messages\[0\] must have a text or a list of parts as content, not None"),
        ([{"role": "user", "content": 5}], "as content, not 5"),
        ([{"role": None, "content": "a"}], "has no role"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}],
            r"messages\[0\] calls 'f' with arguments that are not JSON",
        ),
    ],
)
def test_what_is_no_conversation_is_named(messages: Any, message: str, llm: LLM) -> None:
    for ask in (llm.chat, llm.encode_chat):
        with pytest.raises(RequestError, match=message) as refused:
            ask(messages)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"tools": {"type": "function"}}, "tools must be a list"),
        ({"tools": "f"}, "tools must be a list"),
        ({"tools": ["f"]}, r"tools\[0\] must be a function or a dict with a JSON schema, not 'f'"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs must be a dict"),
        ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs must be a dict"),
    ],
)
def test_what_no_template_can_be_told_is_named(told: dict[str, Any], message: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=message):
        llm.chat(HI, **told)


def test_encode_chat_takes_one_conversation(llm: LLM) -> None:
    with pytest.raises(RequestError, match="encode_chat takes one conversation, but got 2"):
        llm.encode_chat([HI, HI])  # type: ignore[list-item]


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        LLM.from_model(tiny_model(0, SIZE), byte_tokenizer()).chat("hi")
