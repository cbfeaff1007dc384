"""Text to ids and back: streams that never show half a character, comparisons by content, chat templates."""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from pathlib import Path

import pytest
from gguf_files import END, KINDS, MERGES, START, TOKENS, TOOL, TinyFile
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from outrider.errors import ModelError
from outrider.models.files.gguf import read_gguf
from outrider.models.files.gguf_tokenizer import SPLITTERS, _byte_level_bpe, build_tokenizer
from outrider.models.files.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
TEXTS = json.loads(gzip.decompress((DATA / "tokenizer_ids_smollm2.json.gz").read_bytes()))["texts"]
SPLITS = json.loads(gzip.decompress((DATA / "splitter_ids.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build_tokenizer(read_gguf(TinyFile().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")))


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """The other great family: sentence pieces with ▁ for a space and <0x41> for bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "é", "中", "�"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello")]
    backend = Backend(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<unk>", "<s>", "</s>")])
    return Tokenizer(backend, name="pieces", bos_id=1, eos_ids=[2])


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip)
    return [stream.push(token_id) for token_id in ids]


# Ids and text


def test_encode_and_decode(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(f"hello wo12{END}{TOOL}")
    spelled = ["hello", "Ġwo", "1", "2", END, TOOL]  # qwen2 splits digits, so "12" never merges
    assert ids == [TOKENS.index(token) for token in spelled]
    assert byte_level.decode(ids) == f"hello wo12{TOOL}"
    assert byte_level.decode(ids, skip_special_tokens=False) == f"hello wo12{END}{TOOL}"


def test_ids_and_sizes(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == len(TOKENS) - 2  # the two unused ones only pad
    assert byte_level.bos_id == TOKENS.index(START)
    assert byte_level.eos_ids == {TOKENS.index(END)}
    assert byte_level.special_ids == {TOKENS.index(START), TOKENS.index(END)}
    assert byte_level.special_spellings == {spelling: TOKENS.index(spelling) for spelling in (START, END)}
    assert byte_level.decode([0, 266, 267, 5000]) == byte_level.decode([0])


@pytest.mark.parametrize("text", TEXTS[:90])
def test_byte_level_text_survives(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert byte_level.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(byte_level.token_bytes, ids)) == text.encode()


def test_token_text_is_readable(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    assert byte_level.token_text(TOKENS.index("Ġwo")) == " wo"
    assert byte_level.token_bytes(TOKENS.index("ī")) == b"\x89"
    assert byte_level.token_text(TOKENS.index("ī")) == "\ufffd"
    assert byte_level.token_text(99999) == ""
    assert byte_fallback.token_text(byte_fallback.backend.token_to_id("▁hello")) == " hello"
    assert byte_fallback.token_bytes(3 + 0x89) == b"\x89"


def test_bos_and_eos_are_added_when_the_file_asks(tmp_path: Path) -> None:
    asks = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = build_tokenizer(read_gguf(TinyFile(metadata=asks).write(tmp_path / "t.gguf")))
    hello = TOKENS.index("hello")
    assert tokenizer.encode("hello") == [TOKENS.index(START), hello, TOKENS.index(END)]
    assert tokenizer.encode("hello", add_special_tokens=False) == [hello]


def test_end_ids_are_all_the_file_names(tmp_path: Path) -> None:
    kinds = [*KINDS]
    kinds[TOKENS.index(TOOL)] = 3
    more = {"tokenizer.ggml.eot_token_id": TOKENS.index(TOOL), "tokenizer.ggml.token_type": kinds}
    tokenizer = build_tokenizer(read_gguf(TinyFile(metadata=more).write(tmp_path / "t.gguf")))
    assert tokenizer.eos_ids == {TOKENS.index(END), TOKENS.index(TOOL)}


WRONG_TOKENIZERS = {
    "unknown model": ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' is not supported"),
    "unknown split": ({"tokenizer.ggml.pre": "new-bpe"}, "pre-tokenizer 'new-bpe' is not supported"),
    "no split": ({"tokenizer.ggml.pre": None}, "no 'tokenizer.ggml.pre'"),
    "lists disagree": ({"tokenizer.ggml.token_type": KINDS[1:]}, "268 tokens but 267 token types"),
    "token twice": ({"tokenizer.ggml.tokens": [*TOKENS[:5], TOKENS[4], *TOKENS[6:]]}, "names a token twice"),
    "odd merge": ({"tokenizer.ggml.merges": ["he"]}, "'he', which is not two pieces"),
    "foreign merge": ({"tokenizer.ggml.merges": ["zz yy"]}, "merges do not fit"),
    "eos outside": ({"tokenizer.ggml.eos_token_id": 266}, "'tokenizer.ggml.eos_token_id' is 266, outside"),
    "no bos to add": (
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
        "asks for a bos token",
    ),
}


@pytest.mark.parametrize(("metadata", "message"), WRONG_TOKENIZERS.values(), ids=WRONG_TOKENIZERS.keys())
def test_what_cannot_be_right_is_refused(tmp_path: Path, metadata: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_tokenizer(read_gguf(TinyFile(metadata=metadata).write(tmp_path / "t.gguf")))


# Splits


def test_every_splitter_was_compared_with_llama_cpp() -> None:
    assert set(SPLITS["digests"]) == set(SPLITTERS)


@pytest.mark.parametrize("name", sorted(SPLITTERS))
def test_splits_are_llama_cpps(tmp_path: Path, name: str) -> None:
    tokens, splitter = SPLITS["tokens"], SPLITTERS[name]
    lists = {"tokenizer.ggml.merges": SPLITS["merges"], "tokenizer.ggml.tokens": tokens}
    file = read_gguf(TinyFile(metadata=lists).write(tmp_path / "t.gguf"))
    backend = _byte_level_bpe(file, tokens, splitter)
    backend.add_special_tokens([AddedToken(tokens[-1], normalized=False)])
    begin = [len(tokens) - 1] if splitter.add_bos else []
    ids = [begin + backend.encode(text).ids for text in TEXTS]
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest() == SPLITS["digests"][name]


# Streams


@pytest.mark.parametrize("text", [*TEXTS[:24], "\ufffd", "a\ufffdb"])
def test_a_stream_gives_the_text_of_decode(byte_level: Tokenizer, byte_fallback: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, byte_fallback):
        ids = tokenizer.encode(text)
        for skip in (True, False):
            deltas = streamed(tokenizer, ids, skip)
            assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)
            assert "".join(deltas).count("\ufffd") == text.count("\ufffd")


def test_a_character_appears_with_its_last_token(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    assert streamed(byte_level, byte_level.encode("é😀!")) == ["", "é", "", "", "", "😀", "!"]
    ids = byte_fallback.encode("😀 hello")
    assert streamed(byte_fallback, ids)[-5:] == ["", "", "", "😀", " hello"]


def test_finish_gives_the_cut_character(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    for tokenizer in (byte_level, byte_fallback):
        stream = tokenizer.stream()
        ids = tokenizer.encode("😀")[:-1]
        shown = "".join(stream.push(token_id) for token_id in ids)
        assert shown.strip() == ""
        assert shown + stream.finish() == tokenizer.decode(ids)
        assert stream.finish() == ""


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, len(TOKENS) - 1), max_size=40))
def test_any_byte_level_ids_stream_like_decode(ids: list[int]) -> None:
    tokenizer = any_bytes()
    stream = tokenizer.stream()
    text = "".join(stream.push(token_id) for token_id in ids) + stream.finish()
    assert text == tokenizer.decode(ids)


def any_bytes(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006 - made once, outside hypothesis
    if not cache:
        merges = [tuple(merge.split(" ")) for merge in MERGES]
        backend = Backend(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([START, END])
        cache.append(Tokenizer(backend, name="any"))
    return cache[0]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("hello é中😀 �\n"), max_size=30))
def test_any_text_streams_through_sentence_pieces(text: str) -> None:
    tokenizer = pieces()
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def pieces(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006 - the same
    if not cache:
        cache.append(byte_fallback.__wrapped__())  # type: ignore[attr-defined]
    return cache[0]


def test_a_special_token_first_does_not_eat_a_space(byte_fallback: Tokenizer) -> None:
    hello = byte_fallback.backend.token_to_id("▁hello")
    ids = [1, hello, 2, hello, hello]
    assert "".join(streamed(byte_fallback, ids)) == byte_fallback.decode(ids) == "hello hello hello"


def test_streaming_costs_the_same_per_token_however_long_the_text(
    byte_level: Tokenizer, byte_fallback: Tokenizer
) -> None:
    for tokenizer in (byte_level, byte_fallback):
        stream = tokenizer.stream()
        ids = tokenizer.encode("hello 😀 ") * 400

        def seconds(stream: object = stream, ids: list[int] = ids) -> float:
            start = time.perf_counter()
            for token_id in ids:
                stream.push(token_id)  # type: ignore[attr-defined]
            return time.perf_counter() - start

        first = min(seconds() for _ in range(2))
        for _ in range(6):
            seconds()
        assert min(seconds() for _ in range(3)) < 3 * first + 0.01


# Comparing


def vocabulary(tokens: list[str], name: str) -> Tokenizer:
    return Tokenizer(Backend(models.WordLevel({t: i for i, t in enumerate(tokens)}, "a")), name=name)


def test_vocabularies_are_compared_by_content() -> None:
    small, same = vocabulary(["a", "b"], "small"), vocabulary(["a", "b"], "same")
    padded, other = vocabulary(["a", "b", "c"], "padded"), vocabulary(["a", "x", "c"], "other")
    assert small.fingerprint == same.fingerprint != padded.fingerprint
    assert small.compare(same).kind == "equal"
    for left, right in ((small, padded), (padded, small)):
        match = left.compare(right)
        assert (match.kind, match.shared) == ("padded", 2)
        assert match.reason.endswith("; the first 2 are the same")
        assert "small has 2" in match.reason
        assert "padded has 3" in match.reason
    match = padded.compare(other)
    assert (match.kind, match.shared) == ("different", 1)
    assert match.reason == "padded has 3 tokens, other has 3; id 1 is 'b' in padded and 'x' in other"


# Chat templates


def test_a_conversation_is_written_as_the_template_says(byte_level: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    asked = "<|im_start|>user\nhello<|im_end|>\n"
    assert byte_level.apply_chat_template(messages) == f"{asked}<|im_start|>assistant\n"
    assert byte_level.apply_chat_template(messages, add_generation_prompt=False) == asked
