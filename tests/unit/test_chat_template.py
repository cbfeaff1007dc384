"""Chat templates: whatever transformers writes, we write; whatever fails is said of the template or of the messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from byte_text import byte_tokenizer
from chat_templates import CONVERSATIONS, TEMPLATES, WEATHER
from gguf_files import END, TOKENS, TinyFile
from tiny_folder import make_folder
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from outrider.errors import ModelError, OutriderError, RequestError
from outrider.models.files.gguf import read_gguf
from outrider.models.files.gguf_tokenizer import build_tokenizer
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.loading import open_model

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose tokenizer names every kind of special token, one of them of its own."""
    path = make_folder(tmp_path_factory.mktemp("hf") / "tiny-folder")
    told = json.loads((path / "tokenizer_config.json").read_text())
    told |= {"bos_token": "<|user|>", "pad_token": "<|assistant|>", "unk_token": "<|system|>"}
    told["extra_special_tokens"] = {"image_token": "<|user|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(told))
    return path


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    return open_model(folder).tokenizer, AutoTokenizer.from_pretrained(folder)


def with_template(template: Any, special_tokens: dict[str, str] | None = None) -> Tokenizer:
    backend = byte_tokenizer().backend
    return Tokenizer(backend, name="chatty", special_tokens=special_tokens, chat_template=template)


# The same text

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"tools": [WEATHER]},
    "no thinking": {"template_kwargs": {"enable_thinking": False, "date_string": "today"}},
    "documents": {"template_kwargs": {"documents": [{"title": "Ä", "text": "é"}]}},
    "other end": {"template_kwargs": {"eos_token": "</s>"}},
    "go on": {"add_generation_prompt": False, "continue_final_message": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_text_is_transformers(
    pair: tuple[Tokenizer, PreTrainedTokenizerBase], template: str, options: dict[str, Any]
) -> None:
    ours, theirs = pair
    ours.chat_template = theirs.chat_template = TEMPLATES[template]
    flat = {"add_generation_prompt": True} | options
    flat |= flat.pop("template_kwargs", {})
    written = 0
    for messages in CONVERSATIONS.values():
        try:
            expected = theirs.apply_chat_template(messages, tokenize=False, **flat)
        except Exception:  # noqa: BLE001 - whatever a template runs into
            with pytest.raises(OutriderError, match="the chat template") as caught:
                ours.apply_chat_template(messages, **options)
            assert "\n" not in str(caught.value)
            continue
        assert ours.apply_chat_template(messages, **options) == expected
        written += 1
    assert written >= (1 if "continue_final_message" in options else 2)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{{ bos_token }}|{{ messages[0].content | tojson }}", '<s>|"é<b>"'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "é<b>"),
        ("  {% if true %}\nline\n  {% endif %}\n", "line\n"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }} {{ documents is none }} {{ anything is defined }}", "True True False"),
        ("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}", '{"a": "\\u00e9", "b": 1}'),
    ],
)
def test_what_templates_count_on(template: str, written: str) -> None:
    tokenizer = with_template(template, {"bos_token": "<s>"})
    assert tokenizer.apply_chat_template([{"role": "user", "content": "é<b>"}]) == written


def test_the_templates_differ_where_they_should() -> None:
    """A comparison of templates that ignore what they are given would see nothing."""
    tokenizer = with_template(None, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"})
    written = {}
    for name, template in TEMPLATES.items():
        tokenizer.chat_template = template
        written[name] = tokenizer.apply_chat_template(CONVERSATIONS["with a system prompt"], tools=[WEATHER])
    assert len(set(written.values())) == len(TEMPLATES)
    assert "<pad>" in written["macros and documents"]
    assert sum("weather" in text for text in written.values()) == 5


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "pad_token", "unk_token", "image_token", "sep_token"])
def test_special_tokens_are_those_the_folder_names(pair: tuple[Tokenizer, PreTrainedTokenizerBase], name: str) -> None:
    ours, theirs = pair
    ours.chat_template = theirs.chat_template = f"{{{{ {name} if {name} is defined else 'not there' }}}}"
    written = ours.apply_chat_template(USER)
    assert written == theirs.apply_chat_template(USER, tokenize=False)
    assert (written == "not there") == (name == "sep_token")


NAMES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def test_special_tokens_are_those_the_file_names(tmp_path: Path) -> None:
    """Not the lowest of the ids that end a text: <|endoftext|> lies below <|im_end|> in many files."""
    tokens = [*TOKENS]
    tokens[5] = "<|endoftext|>"
    ids = {"bos": 7, "eos": TOKENS.index(END), "padding": TOKENS.index("[PAD266]"), "unknown": 9}
    metadata = {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()} | {"tokenizer.ggml.tokens": tokens}
    tokenizer = build_tokenizer(read_gguf(TinyFile(metadata=metadata).write(tmp_path / "tiny.gguf")))
    assert tokenizer.eos_ids == {5, TOKENS.index(END)}
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    for name, key in NAMES.items():
        tokenizer.chat_template = theirs.chat_template = f"{{{{ {name} }}}}"
        assert tokenizer.apply_chat_template(USER) == tokens[ids[key]]
        assert theirs.apply_chat_template(USER, tokenize=False) == tokens[ids[key]]


@pytest.mark.parametrize("padding", [None, 2**32 - 1])
def test_what_a_file_does_not_name_is_not_there(tmp_path: Path, padding: int | None) -> None:
    metadata = {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.padding_token_id": padding}
    metadata["tokenizer.chat_template"] = "{{ bos_token is defined }} {{ pad_token is defined }} {{ eos_token }}"
    tokenizer = build_tokenizer(read_gguf(TinyFile(metadata=metadata).write(tmp_path / "tiny.gguf")))
    assert tokenizer.apply_chat_template(USER) == f"False False {END}"


# Several templates

SEVERAL = {"default": "plain", "tool_use": "{{ tools | length }} tools"}


@pytest.mark.parametrize(("tools", "written"), [(None, "plain"), ([], "0 tools"), ([WEATHER], "1 tools")])
def test_a_model_may_have_a_template_for_tools(
    folder: Path, tmp_path: Path, tools: list[Any] | None, written: str
) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.chat_template = SEVERAL
    theirs.save_pretrained(tmp_path / "saved")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / "saved" / name).write_bytes((folder / name).read_bytes())
    metadata = {
        "tokenizer.chat_template": SEVERAL["default"],
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": SEVERAL["tool_use"],
    }
    saved = open_model(tmp_path / "saved").tokenizer
    file = build_tokenizer(read_gguf(TinyFile(metadata=metadata).write(tmp_path / "tiny.gguf")))
    for tokenizer in (saved, file):
        assert tokenizer.apply_chat_template(USER, tools=tools) == written
    assert theirs.apply_chat_template(USER, tools=tools, tokenize=False) == written


def test_functions_become_tools() -> None:
    def add(a: int, b: int) -> int:
        """Add numbers.

        Args:
            a: one.
            b: another.
        """
        return a + b

    written = with_template("{{ tools | tojson }}").apply_chat_template(USER, tools=[add])
    assert json.loads(written)[0]["function"]["parameters"]["required"] == ["a", "b"]
    with pytest.raises(RequestError, match="Tools should either be a JSON schema"):
        with_template("{{ tools }}").apply_chat_template(USER, tools=["add"])


# Who is to blame

FAULTS: dict[str, tuple[Any, list[Any], dict[str, Any], type[OutriderError], str]] = {
    "none": (None, USER, {}, ModelError, "has no chat template"),
    "no default": ({"a": "x"}, USER, {}, ModelError, r"none of its chat templates \(a\) is the default"),
    "syntax": ("{% if %}", USER, {}, ModelError, r"the chat template cannot be compiled: .* \(line 1\)"),
    "unknown tag": ("a\n{% nonsense %}", USER, {}, ModelError, r"cannot be compiled: .*'nonsense'.* \(line 2\)"),
    "unknown filter": ("{{ 1 | nonsense }}", USER, {}, ModelError, "cannot be compiled: No filter named 'nonsense'"),
    "unknown filter in a branch": (
        "{% if messages %}{{ 1 | nonsense }}{% endif %}", USER, {}, ModelError, "No filter named 'nonsense'"
    ),
    "unknown test": ("{% if messages is odder %}{% endif %}", USER, {}, ModelError, "No test named 'odder'"),
    "not allowed": ("{{ ''.__class__.__mro__ }}", USER, {}, ModelError, "cannot be run: access to attribute"),
    "changes what it is given": ("{{ messages.append(1) }}", USER, {}, ModelError, "cannot be run"),
    "named template": (
        {"default": "", "tool_use": "{% x %}"}, USER, {"tools": []}, ModelError, "the chat template 'tool_use' cannot"
    ),
    "raised": (
        "{{ raise_exception('roles must alternate') }}", USER, {}, RequestError,
        "the chat template refuses these messages: roles must alternate",
    ),
    "raised on several lines": ("{{ raise_exception('a\nb') }}", USER, {}, RequestError, "refuses these messages: a b"),
    "undefined": ("{{ messages[0].name.first }}", USER, {}, RequestError, "fails on these messages: .*'name'"),
    "type": ("{{ 'a' + messages[0].n }}", [{"role": "user", "n": 1}], {}, RequestError, "fails on these messages"),
    "division": ("{{ 1 / (messages | length - 1) }}", USER, {}, RequestError, "fails on .*: division by zero"),
    "attribute": ("{{ messages[0].content.items() }}", USER, {}, RequestError, "fails on these messages"),
    "endless": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", USER, {}, RequestError, "maximum recursion depth"),
    "too long": ("{{ range(10 ** 9) | list }}", USER, {}, RequestError, "Range too big"),
    "no JSON": ("{{ messages | tojson(indent=dict) }}", USER, {}, RequestError, "fails on these messages"),
    "no messages": ("x", [], {}, RequestError, "Provide at least one message"),
    "a text": ("x", "hi", {}, RequestError, "one list of messages"),
    "one message": ("x", USER[0], {}, RequestError, "one list of messages"),
    "several conversations": ("x", [USER], {}, RequestError, "one list of messages"),
    "not a message": ("x", [3], {}, RequestError, "Chat messages should be dicts"),
    "an option of the call": ("x", USER, {"template_kwargs": {"tokenize": True}}, RequestError, "reads 'tokenize'"),
    "begin and go on": ("x", USER, {"continue_final_message": True}, RequestError, "switch one of them off"),
    "nothing to go on with": (
        "{{ messages[0].content }}", [{"role": "user"}],
        {"continue_final_message": True, "add_generation_prompt": False}, RequestError, "to continue",
    ),
    "an image": (
        "x", [USER[0], {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], {},
        RequestError, r"^messages\[1\] has a part of the type 'image_url', and \S+ reads text alone$",
    ),
    "a sound": (
        "x", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}], {},
        RequestError, r"^messages\[0\] has a part of the type 'input_audio'",
    ),
    "no text": ("x", [{"role": "user", "content": [{"type": "text"}]}], {}, RequestError, "a part of no text"),
    "no part": ("x", [{"role": "user", "content": [3]}], {}, RequestError, r"^messages\[0\] has a part of no text"),
}  # fmt: skip


@pytest.mark.parametrize(("template", "messages", "options", "kind", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_failure_is_said_in_one_sentence(
    template: Any, messages: list[Any], options: dict[str, Any], kind: type[OutriderError], reason: str
) -> None:
    with pytest.raises(kind, match=reason) as caught:
        with_template(template).apply_chat_template(messages, **options)
    assert type(caught.value) is kind
    assert "chatty" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_template_is_given_cannot_be_changed_or_reached_through() -> None:
    class Secret(str):
        def read(self) -> str:
            return "secret"

    messages = [{"role": "user", "content": Secret("hi"), "nested": [1]}]
    assert with_template("{{ messages[0].content.read is defined }}").apply_chat_template(messages) == "False"
    assert messages[0]["nested"] == [1]


# Content in parts

PARTS = [{"type": "text", "text": "first 'a'"}, {"type": "input_text", "text": "second\n"}]
IN_PARTS = [{"role": "system", "content": ["Be brief."]}, {"role": "user", "content": PARTS}]
IN_STRINGS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "first 'a'\nsecond\n"}]
STRING_TEMPLATES = {name: text for name, text in TEMPLATES.items() if name != "parts"} | {
    "shown": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "shown as JSON": "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
    "shown trimmed": "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "left out": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}",
    "refused": (
        "{% for m in messages %}{% if m.content is not string %}{{ raise_exception('strings!') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    ),
}


@pytest.mark.parametrize("template", STRING_TEMPLATES)
def test_parts_become_a_string_where_a_template_reads_strings(template: str) -> None:
    tokenizer = with_template(STRING_TEMPLATES[template], {"bos_token": "<s>", "eos_token": "</s>"})
    written = tokenizer.apply_chat_template(IN_PARTS)
    assert written == tokenizer.apply_chat_template(IN_STRINGS)
    assert "second" in written


def test_parts_stay_parts_where_a_template_reads_them(pair: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    ours, theirs = pair
    ours.chat_template = theirs.chat_template = TEMPLATES["parts"]
    plain = [[{"type": "text", "text": "Be brief."}], [{"type": "text", "text": part["text"]} for part in PARTS]]
    messages = [message | {"content": content} for message, content in zip(IN_PARTS, plain, strict=True)]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(IN_PARTS) == expected
    assert "first 'a'second<end_of_turn>" in expected, "joined, there would be a line break"
    ours.chat_template = "{% for m in messages %}{% for part in m.content %}{{ part.text }}|{% endfor %}{% endfor %}"
    assert ours.apply_chat_template(IN_PARTS) == "Be brief.|first 'a'|second\n|"


def test_each_message_is_written_as_its_own_place_needs_it() -> None:
    template = (
        "{{ messages[0].content | trim }}"
        "{% for m in messages[1:] %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}"
    )
    assert with_template(template).apply_chat_template(IN_PARTS) == "Be brief.<first 'a'><second\n>"


def test_a_text_that_a_template_drops_is_no_sign_of_anything() -> None:
    template = "{% for part in messages[-1].content %}<{{ part.text }}>{% endfor %}"
    assert with_template(template).apply_chat_template(IN_PARTS) == "<first 'a'><second\n>"


def test_the_messages_are_left_as_they_are() -> None:
    before = json.dumps(IN_PARTS)
    with_template(STRING_TEMPLATES["shown"]).apply_chat_template(IN_PARTS)
    assert json.dumps(IN_PARTS) == before


def test_a_model_goes_on_with_a_part(pair: tuple[Tokenizer, PreTrainedTokenizerBase]) -> None:
    ours, theirs = pair
    last = {"role": "assistant", "content": [{"type": "text", "text": "Well,"}]}
    ours.chat_template = theirs.chat_template = TEMPLATES["parts"]
    expected = theirs.apply_chat_template([*USER, last], tokenize=False, continue_final_message=True)
    ours_options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ours.apply_chat_template([*USER, last], **ours_options) == expected
    assert expected.endswith("model\nWell,")
    ours.chat_template = TEMPLATES["chatml"]
    assert ours.apply_chat_template([*USER, last], **ours_options).endswith("assistant\nWell,")
