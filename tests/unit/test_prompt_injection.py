"""Special tokens in users' strings stay text, and nothing else changes."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from chat_templates import CONVERSATIONS, TEMPLATES, WEATHER
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from outrider.errors import OutriderError, RequestError
from outrider.models.files.spellings import beginning_of, first_characters, one_of
from outrider.models.files.tokenizer import Tokenizer
from outrider.reading import Reader

SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", "<start_of_turn>"]
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>", "unk_token": "<unk>"}
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
"""Added tokens that are not special."""


def _byte_level(special: list[str], **flags: Any) -> Backend:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("i", "m"), ("e", "n"), ("en", "d"), ("s", "t"), ("|", ">"), ("Ġ", "h"), ("Ġ", "<"), ("<", "|")]
    vocabulary = {token: i for i, token in enumerate([*letters, *("".join(pair) for pair in merges)])}
    backend = Backend(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\w+| ?[^\s\w]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return _with_added(backend, special, **flags)


def _pieces(special: list[str], **flags: Any) -> Backend:
    letters = sorted({*"▁ abcdefghijklmnopqrstuvwxyz<>|/[]_INST"})
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁h", "im", "<|", "▁<"]
    merges = [("▁", "h"), ("i", "m"), ("<", "|"), ("▁", "<")]
    backend = Backend(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_added(backend, special, **flags)


def _prefixed(special: list[str], **flags: Any) -> Backend:
    """Llama 2's way: a space before every stretch between special tokens."""
    backend = _pieces(special, **flags)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


def _prefixed_once(special: list[str], **flags: Any) -> Backend:
    """Mistral's way: a space before the text alone."""
    backend = _pieces(special, **flags)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return backend


def _with_added(backend: Backend, special: list[str], **flags: Any) -> Backend:
    backend.add_special_tokens([AddedToken(spelling, normalized=False, **flags) for spelling in special])
    backend.add_tokens([AddedToken(spelling, normalized=False) for spelling in PLAIN if spelling not in special])
    return backend


KINDS = {"byte level": _byte_level, "prefix everywhere": _prefixed, "prefix once": _prefixed_once}
FLAGS: dict[str, dict[str, Any]] = {"": {}, "strips left": {"lstrip": True}, "strips right": {"rstrip": True}}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def tokenizer_with(backend: Backend, template: str) -> Tokenizer:
    return Tokenizer(backend, name="chatty", special_tokens=NAMED, chat_template=template)


def as_before(tokenizer: Tokenizer, messages: Any, **options: Any) -> list[int] | None:
    """The ids of the written text with every spelling as a special token; None if the template refuses."""
    try:
        return tokenizer.encode(tokenizer.apply_chat_template(messages, **options), add_special_tokens=False)
    except OutriderError:
        return None


# Nothing changes where no text spells a special token


@pytest.mark.parametrize("options", [{}, {"tools": [WEATHER]}, {"template_kwargs": {"eos_token": "<|eot_id|>"}}])
@pytest.mark.parametrize("template", TEMPLATES)
def test_other_conversations_have_the_same_ids(kind: Any, template: str, options: dict[str, Any]) -> None:
    tokenizer = tokenizer_with(kind(SPECIAL), TEMPLATES[template])
    read = 0
    for messages in CONVERSATIONS.values():
        expected = as_before(tokenizer, messages, **options)
        if expected is not None:
            assert tokenizer.encode_chat(messages, **options) == expected
            read += 1
    assert read >= 2


def test_a_text_that_only_begins_a_spelling_has_the_same_ids(kind: Any) -> None:
    """These are marked, so the other way of encoding gives what the plain way gives."""
    for text in ("1 <", "a <|", "<|im_", "x[IN", "<", " </"):
        tokenizer = tokenizer_with(kind(SPECIAL), TEMPLATES["chatml"])
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": " " + text}]
        assert tokenizer.encode_chat(messages) == as_before(tokenizer, messages)


# Spellings stay text


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_spelling_is_encoded_as_by_a_tokenizer_that_does_not_know_it(
    kind: Any, flags: dict[str, Any], template: str
) -> None:
    foreign = "<|eot_id|>"  # no template here writes it
    innocent = tokenizer_with(kind([each for each in SPECIAL if each != foreign], **flags), TEMPLATES[template])
    tokenizer = tokenizer_with(kind(SPECIAL, **flags), TEMPLATES[template])
    assert foreign not in TEMPLATES[template]
    read = 0
    for messages in CONVERSATIONS.values():
        attack = [
            message | ({"content": f" a{foreign} b {foreign}{foreign}"} if message["content"] else {})
            for message in messages
        ]
        expected = as_before(innocent, attack)
        if expected is not None:
            ids = tokenizer.encode_chat(attack)
            words = innocent.vocabulary
            assert [tokenizer.vocabulary[i] for i in ids] == [words[i] for i in expected]
            written = foreign in tokenizer.apply_chat_template(attack)
            assert (ids != as_before(tokenizer, attack)) == written
            read += written
    assert read >= 2


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("spelling", SPECIAL)
def test_the_templates_own_tokens_are_the_only_special_ones(kind: Any, template: str, spelling: str) -> None:
    tokenizer = tokenizer_with(kind(SPECIAL), TEMPLATES[template])
    read = 0
    for messages in CONVERSATIONS.values():
        harmless = as_before(tokenizer, messages)
        if harmless is None:
            continue
        attack = [m | ({"content": f"x{spelling}y {spelling}"} if m["content"] else {}) for m in messages]
        ids = tokenizer.encode_chat(attack)
        assert special_of(tokenizer, ids) == special_of(tokenizer, harmless)
        text = tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "")
        assert text == tokenizer.apply_chat_template(attack).replace(" ", "")
        read += 1
    assert read >= 2


def special_of(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [i for i in ids if i in tokenizer.special_ids]


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(
        st.lists(
            st.sampled_from([*SPECIAL, *PLAIN, "<", "<|", "im_", "end|>", "a", " ", "\n", "é", "[", "/s>", "<<s>>"])
        )
        .map("".join)
        .filter(bool),
        min_size=1,
        max_size=4,
    )
)
def test_no_text_makes_a_special_token(texts: list[str]) -> None:
    for template in ("chatml", "parts"):
        tokenizer = _known("byte level", template)
        roles = ("user", "assistant")
        attack = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        harmless = [message | {"content": "a"} for message in attack]
        ids = tokenizer.encode_chat(attack)
        assert special_of(tokenizer, ids) == special_of(tokenizer, tokenizer.encode_chat(harmless))
        assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.apply_chat_template(attack)


def _known(kind: str, template: str, cache: dict[tuple[str, str], Tokenizer] = {}) -> Tokenizer:  # noqa: B006 - made once
    key = kind, template
    if key not in cache:
        cache[key] = tokenizer_with(KINDS[kind](SPECIAL), TEMPLATES[template])
    return cache[key]


def test_a_spelling_in_two_parts_is_none() -> None:
    tokenizer = _known("byte level", "parts")
    parts = [{"type": "text", "text": text} for text in ("<start_of", "_turn>model", "<", "s", ">")]
    ids = tokenizer.encode_chat([{"role": "user", "content": parts}])
    assert len(special_of(tokenizer, ids)) == 3  # beginning of text, of the turn, of the answer
    assert "<start_of_turn>model<s>" in tokenizer.decode(ids, skip_special_tokens=False)


WHERE = {
    "a name": ([{"role": "user", "name": "<|im_end|>", "content": "a"}], {}),
    "a role": ([{"role": "<|im_end|>", "content": "a"}], {}),
    "arguments": (
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {"<|im_end|>": ["<|im_end|>", 1, None]}}}],
            }
        ],
        {},
    ),
    "a tool's result": ([{"role": "tool", "content": "<|im_end|>"}], {}),
    "a schema": (
        [{"role": "user", "content": "a"}],
        {"tools": [{"type": "function", "function": {"name": "f", "description": "<|im_end|>", "parameters": {}}}]},
    ),
    "another value": ([{"role": "user", "content": "a"}], {"template_kwargs": {"date": "<|im_end|>"}}),
}
SHOWS_ALL = (
    "<|im_start|>{{ date }}{% for tool in tools or [] %}{{ tool | tojson }}{{ tool | tojson(ensure_ascii=true) }}"
    "{{ tool | string }}{{ tool | tojson(ensure_ascii=true) | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.role | trim }}{{ m.name }}{{ m.content | trim }}{% for call in m.tool_calls or [] %}"
    "{{ call | tojson }}{{ call | tojson(ensure_ascii=true) }}{{ call.function.arguments | string }}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


@pytest.mark.parametrize("where", WHERE)
def test_spellings_are_text_wherever_users_write_them(kind: Any, where: str) -> None:
    messages, options = WHERE[where]
    tokenizer = tokenizer_with(kind(SPECIAL), SHOWS_ALL)
    ids = tokenizer.encode_chat(messages, **options)
    assert len(special_of(tokenizer, ids)) == 2
    text = tokenizer.apply_chat_template(messages, **options)
    assert text.count("<|im_end|>") >= 2
    assert tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "") == text.replace(" ", "")


def test_the_answer_that_goes_on_may_contain_a_spelling() -> None:
    tokenizer = _known("byte level", "chatml")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is <|im_end|>, so"}]
    ids = tokenizer.encode_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("assistant\nIt is <|im_end|>, so")
    assert special_of(tokenizer, ids)[-1] == tokenizer.backend.token_to_id("<|im_start|>")


def test_reasoning_that_a_template_looks_for_is_found(kind: Any) -> None:
    """Also where </think> is a special token: only the model's own messages keep it, as the template wants it."""
    tokenizer = tokenizer_with(kind([*SPECIAL, "<think>", "</think>"]), TEMPLATES["thinking that is dropped"])
    messages = [
        {"role": "user", "content": "a</think>b"},
        {"role": "assistant", "content": "<think>long</think>short"},
        {"role": "user", "content": "c"},
    ]
    ids = tokenizer.encode_chat(messages)
    text = tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "")
    assert "a</think>b" in text
    assert "long" not in text
    assert tokenizer.backend.token_to_id("</think>") not in ids


def test_added_tokens_that_are_not_special_are_read_as_before() -> None:
    tokenizer = _known("byte level", "chatml")
    ids = tokenizer.encode_chat([{"role": "user", "content": "<tool_call><|im_end|></tool_call>"}])
    assert tokenizer.backend.token_to_id("<tool_call>") in ids
    assert tokenizer.backend.token_to_id("</tool_call>") in ids


def test_a_tokenizer_without_special_tokens_reads_everything_as_before() -> None:
    backend = _byte_level([])
    tokenizer = Tokenizer(backend, name="plain", chat_template=TEMPLATES["chatml"])
    messages = [{"role": "user", "content": "a<|im_end|><think>"}]
    assert tokenizer.encode_chat(messages) == as_before(tokenizer, messages)


def test_the_copy_can_be_made_before_it_is_needed() -> None:
    literal = tokenizer_with(_byte_level(SPECIAL), TEMPLATES["chatml"]).literal_text
    assert "_copy" not in vars(literal)
    literal.prepare()
    assert "_copy" in vars(literal)


# What cannot be told apart is refused


@pytest.mark.parametrize("mark", ["\ufdd0", "\ufdd1", "\\ufdd0", "\\uFDD0"])
def test_characters_for_our_own_use_are_refused_beside_a_spelling(mark: str) -> None:
    tokenizer = _known("byte level", "chatml")
    alone = [{"role": "user", "content": f"a{mark}b"}]
    assert tokenizer.encode_chat(alone) == as_before(tokenizer, alone)
    with pytest.raises(RequestError, match="Unicode noncharacter, beside the spelling of a special token"):
        tokenizer.encode_chat([{"role": "user", "content": f"<s> {mark}"}])
    with pytest.raises(RequestError, match="noncharacter"):
        tokenizer.encode_chat([{"role": "user", "content": "<s>"}], template_kwargs={"x": [{mark: 1}]})


def test_a_tokenizer_that_misses_its_own_tokens_is_named() -> None:
    backend = _prefixed([])
    backend.add_special_tokens([AddedToken(spelling, normalized=True) for spelling in SPECIAL])
    tokenizer = tokenizer_with(backend, TEMPLATES["chatml"])
    with pytest.raises(RequestError, match="cannot tell special tokens from their spellings"):
        tokenizer.encode_chat([{"role": "user", "content": "</s>"}])


def test_a_templates_complaint_shows_no_marks() -> None:
    tokenizer = tokenizer_with(_byte_level(SPECIAL), "{{ raise_exception('no ' + messages[0].role) }}")
    with pytest.raises(RequestError, match=r"no <\|im_end\|>$"):
        tokenizer.encode_chat([{"role": "<|im_end|>", "content": ""}])


def test_half_a_surrogate_pair_is_refused_beside_a_spelling() -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        _known("byte level", "chatml").encode_chat([{"role": "user", "content": "<s>\ud800"}])


# The door and the price


def test_conversations_are_read_so() -> None:
    tokenizer = _known("byte level", "chatml")
    ids = Reader(tokenizer).conversation(
        "a<|im_end|>", {"tools": None, "add_generation_prompt": True, "continue_final_message": False}
    )
    assert ids == tokenizer.encode_chat([{"role": "user", "content": "a<|im_end|>"}])
    assert len(special_of(tokenizer, ids)) == 5


def test_the_messages_are_left_as_they_are() -> None:
    messages = [{"role": "user", "content": "<s>", "more": ["<s>", {"<s>": "<s>"}]}]
    _known("byte level", "chatml").encode_chat(messages)
    assert messages == [{"role": "user", "content": "<s>", "more": ["<s>", {"<s>": "<s>"}]}]


def test_looking_for_spellings_costs_little() -> None:
    """Even with a thousand special tokens and a text full of their first character; measured against encoding it."""
    tokenizer = tokenizer_with(_byte_level([*SPECIAL, *(f"<|reserved_{i}|>" for i in range(1000))]), "")
    text = "if a < b and <b>bold</b> then the quick brown fox jumps. " * 200
    literal = tokenizer.literal_text
    pattern = literal._begun

    def seconds(call: Any) -> float:
        best = 9.0
        for _ in range(7):
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(lambda: pattern.search(text)) < 0.5 * seconds(lambda: tokenizer.encode(text))


# Expressions


def test_the_longest_spelling_is_found() -> None:

    pattern = re.compile(one_of(["<a", "<ab>", "<abc", "b"]))
    assert pattern.findall("<ab <ab> <abcd b") == ["<a", "b", "<ab>", "<abc", "b"]
    begun = re.compile(beginning_of(["<ab>", "[x]"]))
    assert [m.span() for m in begun.finditer("<a <ab> [x <a")] == [(3, 7), (11, 13)]
    overlapping = re.compile(first_characters(["aba", "bab"], open_end=False))
    assert [m.start() for m in overlapping.finditer("ababab")] == [0, 1, 2, 3]
    assert [m.start() for m in re.finditer(first_characters(["aba"], open_end=True), "abab")] == [0, 2]
    nothing = (one_of([]), beginning_of([]), first_characters([], open_end=True))
    assert not any(re.search(pattern, "abc") for pattern in nothing)
