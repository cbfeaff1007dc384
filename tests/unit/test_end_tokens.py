"""Ends that are known by name count in every file, whatever it says of their type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf_files import END, KINDS, TOKENS, TOOL, TinyFile
from tiny_folder import END as FOLDER_END
from tiny_folder import make_folder
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from outrider.errors import ModelError
from outrider.models.files.end_tokens import END_TOKENS, named_ends
from outrider.models.files.gguf import read_gguf
from outrider.models.files.gguf_tokenizer import build_tokenizer
from outrider.models.files.tokenizer import Tokenizer
from outrider.models.loading import open_model

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
NAMES = [end.text for end in END_TOKENS]


def from_gguf(path: Path, text: str, kind: int) -> Tokenizer:
    """The tokenizer of a file whose end of sequence is another token than the named one."""
    tokens, kinds = [*TOKENS], [*KINDS]
    tokens[tokens.index(TOOL)] = text
    kinds[tokens.index(text)] = kind
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    return build_tokenizer(read_gguf(TinyFile(metadata=metadata).write(path / "tiny.gguf")))


def from_folder(path: Path, *tokens: AddedToken, **told: object) -> Tokenizer:
    """The tokenizer of a folder with more added tokens."""
    folder = make_folder(path / "model", vocabulary=320)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens(list(tokens))
    backend.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | told))
    return open_model(folder).tokenizer


@pytest.mark.parametrize("kind", [NORMAL, UNKNOWN, CONTROL, USER_DEFINED])
@pytest.mark.parametrize("text", [name for name in NAMES if name != END])
def test_a_named_end_counts_whatever_its_type(tmp_path: Path, text: str, kind: int) -> None:
    tokenizer = from_gguf(tmp_path, text, kind)
    assert tokenizer.eos_ids == {TOKENS.index(END), TOKENS.index(TOOL)}
    assert tokenizer.special_ids >= tokenizer.eos_ids, "an end would be shown"
    assert tokenizer.encode(f"hello{text}hello")[1:-1] == [TOKENS.index(TOOL)], "an end in a conversation is one token"


@pytest.mark.parametrize("kind", [NORMAL, CONTROL, USER_DEFINED])
@pytest.mark.parametrize("text", ["<tool>", "<|start|>", "<|im_end|", "</s>"])
def test_another_name_is_no_end(tmp_path: Path, text: str, kind: int) -> None:
    assert from_gguf(tmp_path, text, kind).eos_ids == {TOKENS.index(END)}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("text", [name for name in NAMES if name != FOLDER_END])
def test_a_named_end_of_a_folder_counts(tmp_path: Path, text: str, special: bool) -> None:
    tokenizer = from_folder(tmp_path, AddedToken(text, special=special))
    beside = named_ends([text, FOLDER_END])
    assert {tokenizer.backend.id_to_token(i) for i in tokenizer.eos_ids} == {FOLDER_END, *beside}
    assert text in beside


def test_a_token_that_only_the_class_adds_is_no_end(tmp_path: Path) -> None:
    """Qwen2's class adds <|endoftext|> where a folder has none, with an id that the model was made without."""
    tokenizer = from_folder(tmp_path, tokenizer_class="Qwen2Tokenizer")
    added = tokenizer.backend.token_to_id("<|endoftext|>")
    assert added is not None
    assert added not in tokenizer.eos_ids


def test_what_separates_the_parts_of_a_turn_is_no_end() -> None:
    assert named_ends(["<|end|>", "a"]) == {"<|end|>"}
    assert named_ends(["<|end|>", "<|return|>", "<|call|>"]) == {"<|return|>", "<|call|>"}
    assert named_ends([]) == frozenset()


def test_each_name_is_in_the_table_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(end.models for end in END_TOKENS)


def test_ends_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": ["a"]}')
    with pytest.raises(ModelError, match=r"must be integers, not \['a'\]"):
        open_model(folder)
