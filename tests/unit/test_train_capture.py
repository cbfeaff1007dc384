"""Captured hidden rows: those of the model's own pass, kept whole or found missing."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCABULARY, tiny_model, tiny_module, tiny_native
from tiny_folder import make_folder

from outrider import files
from outrider.errors import ConfigError, NumericsError
from outrider.kernels.native import cpu
from outrider.llm import LLM
from outrider.models.base import TargetModel
from outrider.train.data.example import Example
from outrider.train.data.prompts import TrainingPrompt
from outrider.train.data.regenerate import AnswerConfig
from outrider.train.features import buffer as buffer_module
from outrider.train.features.batches import Shards
from outrider.train.features.buffer import Captured, FeatureBuffer, row_bytes
from outrider.train.features.capture import capture, capture_each, captured_layers
from outrider.train.features.sources import Online, Streamed

BACKENDS = [
    pytest.param(tiny_model, id="hf"),
    pytest.param(tiny_native, id="native", marks=pytest.mark.skipif(cpu is None, reason="no kernels were built")),
]
LAYERS, WIDTH, ROOM = (0, 2), 32, 1 << 24


def texts(*lengths: int, seed: int = 0) -> list[Example]:
    dice = random.Random(seed)
    return [Example([dice.randrange(VOCABULARY) for _ in range(length)], dice.randint(1, length)) for length in lengths]


def buffer(folder: Path, **options: Any) -> FeatureBuffer:
    return FeatureBuffer(folder, LAYERS, WIDTH, **{"limit_bytes": ROOM, "shard_bytes": 4000} | options)


def contents(captured: Sequence[Captured]) -> list[tuple[Any, ...]]:
    return sorted(
        (one.tokens.tolist(), one.answer_start, *(one.features[layer].tolist() for layer in LAYERS)) for one in captured
    )


@pytest.mark.parametrize("make", BACKENDS)
@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), pass_rows=st.integers(1, 64))
def test_rows_are_those_of_each_text_alone_however_passes_are_cut(
    make: Any, lengths: list[int], pass_rows: int
) -> None:
    target: TargetModel = make()
    examples = texts(*lengths)
    found = list(capture_each(target, examples, (0, 1, 2), pass_rows))
    assert [example for example, _ in found] == examples
    for example, features in found:
        [(_, alone)] = capture_each(target, [example], (0, 1, 2), 512)
        for layer in (0, 1, 2):
            assert features[layer].shape == (len(example.tokens), WIDTH)
            if target.row_invariant:
                assert torch.equal(features[layer], alone[layer])
            else:
                torch.testing.assert_close(features[layer], alone[layer], atol=1e-4, rtol=1e-4)


def test_rows_are_the_unmodified_models_hidden_states() -> None:
    module = tiny_module(attention="eager")
    [example] = texts(23)
    [(_, features)] = capture_each(tiny_model(), [example], (0, 1, 2), 7)
    states = module(torch.tensor([example.tokens]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(features[0], states[1][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(features[2], states[2][0], atol=1e-4, rtol=1e-4)  # the last state is after the norm
    assert not torch.allclose(features[1], states[2][0], atol=1e-2)


def test_a_head_gets_the_layers_it_reads_and_the_final_rows() -> None:
    assert captured_layers(tiny_model(), [1, 0]) == (0, 1, 2)
    with pytest.raises(ConfigError, match=r"the target has layers 0 to 2, so hidden rows of layers \[3\]"):
        captured_layers(tiny_model(), [3])


def test_texts_longer_than_the_context_are_refused() -> None:
    with pytest.raises(ConfigError, match="a text has 513 tokens, but the target's context has 512"):
        next(capture_each(tiny_model(), texts(513), LAYERS))


def test_what_goes_in_comes_out_in_half_precision_and_in_the_order_of_keys(tmp_path: Path) -> None:
    examples = texts(*range(3, 30))
    store = buffer(tmp_path)
    report = capture(tiny_model(), examples, [0], store)
    assert (report.texts, report.rows, report.left) == (27, sum(range(3, 30)), 0)
    assert len(list(tmp_path.glob("shard-*.safetensors"))) > 3
    again = buffer(tmp_path)
    assert len(again) == 27
    assert all(example in again for example in examples)
    ordered = sorted(examples, key=lambda example: example.key)
    assert [len(text.tokens) for text in again] == [len(example.tokens) for example in ordered]
    expected = {example.key: features for example, features in capture_each(tiny_model(), examples, LAYERS)}
    for example, captured in zip(ordered, again, strict=True):
        assert captured.tokens.tolist() == example.tokens
        assert captured.answer_start == example.answer_start
        for layer in LAYERS:
            assert captured.features[layer].dtype == torch.float16
            assert torch.equal(captured.features[layer], expected[example.key][layer].half())


def test_a_second_run_captures_only_what_is_missing_and_a_kill_loses_one_shard(tmp_path: Path) -> None:
    examples = texts(*range(3, 30))
    killed = buffer(tmp_path)
    for example, features in capture_each(tiny_model(), examples[:20], LAYERS):
        killed.append(example, features)  # and no flush: what is still in memory is lost
    (tmp_path / "shard-000099.safetensors.part").write_bytes(b"half")
    again = buffer(tmp_path)
    held = len(again)
    assert 0 < held < 20
    assert capture(tiny_model(), examples, [0], again).texts == 27 - held
    whole = buffer(tmp_path / "whole")
    capture(tiny_model(), examples, [0], whole)
    assert contents(list(again)) == contents(list(whole))
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize("damage", ["shorter", "changed", "gone"])
def test_a_damaged_shard_is_named_dropped_and_captured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    examples = texts(*range(3, 30))
    capture(tiny_model(), examples, [0], buffer(tmp_path))
    before = contents(list(buffer(tmp_path)))
    path = tmp_path / "shard-000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes(content if damage == "changed" else content[:-7])
    with caplog.at_level(logging.WARNING, "outrider"):
        store = buffer(tmp_path)
        if damage == "changed":
            with pytest.raises(ConfigError, match=r"shard-000002\.safetensors is damaged: its checksum is"):
                list(store)
        report = capture(tiny_model(), examples, [0], store)
    assert 0 < report.texts < 27
    assert "shard-000002.safetensors is damaged" in caplog.text
    assert contents(list(store)) == contents(list(buffer(tmp_path))) == before


def test_a_damaged_index_means_that_everything_is_captured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capture(tiny_model(), texts(5, 6), [0], buffer(tmp_path))
    (tmp_path / "index.json").write_text('{"shards": [{"name"')
    assert capture(tiny_model(), texts(5, 6), [0], buffer(tmp_path)).texts == 2
    assert "index.json is damaged" in caplog.text


def test_a_folder_of_other_layers_or_another_target_is_refused_with_both(tmp_path: Path) -> None:
    capture(tiny_model(), texts(5), [0], buffer(tmp_path, target="a"))
    with pytest.raises(ConfigError, match="was made with target 'a', not 'b'"):
        buffer(tmp_path, target="b")
    with pytest.raises(ConfigError, match=r"was made with layers \[0, 2\], not \[1, 2\]"):
        FeatureBuffer(tmp_path, (1, 2), WIDTH, ROOM, target="a")
    with pytest.raises(ConfigError, match=r"has layers \[0, 2\], not \[1, 2\]"):
        capture(tiny_model(), texts(5), [1], buffer(tmp_path, target="a"))


def test_the_buffer_keeps_within_its_bytes(tmp_path: Path) -> None:
    store = buffer(tmp_path, limit_bytes=10_000)
    report = capture(tiny_model(), texts(*[10] * 20), [0], store)
    assert report.texts == len(store) == 10_000 // (10 * store.row_bytes) == 7
    assert report.left == 13
    sizes = [path.stat().st_size for path in tmp_path.glob("shard-*")]
    assert sum(sizes) < 10_000 + 400 * len(sizes)  # a header for each
    with pytest.raises(ConfigError, match=r"is full: it has .* of 10000 bytes; allow more"):
        store.append(texts(10)[0], {layer: torch.zeros(10, WIDTH) for layer in LAYERS})
    store.clear()
    assert (len(store), store.bytes) == (0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]


@pytest.mark.parametrize("failing", ["shard-000002.safetensors", "index.json"])
def test_a_full_disk_says_what_to_do_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    examples = texts(*range(3, 30))
    write, calls = buffer_module.write_whole, []

    def full(path: Path, content: bytes | str) -> None:
        calls.append(path.name)
        if path.name == failing and len(calls) > 2:
            path.with_name(path.name + files.PARTIAL).touch()
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(buffer_module, "write_whole", full)
    with pytest.raises(ConfigError, match=r"No space left on device\); free \d+ MiB or more there, or name"):
        capture(tiny_model(), examples, [0], buffer(tmp_path))
    monkeypatch.undo()
    store = buffer(tmp_path)
    held = len(store)
    assert 0 < held < 27
    assert capture(tiny_model(), examples, [0], store).texts == 27 - held
    assert len(store) == 27


def test_a_part_written_by_a_full_disk_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be written"):
        capture(tiny_model(), texts(9), [0], buffer(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_rows_out_of_range_are_bounded_and_rows_that_are_no_numbers_refused(tmp_path: Path) -> None:
    store, [example] = buffer(tmp_path), texts(2)
    rows = torch.full((2, WIDTH), 1e6)
    store.append(example, {0: rows, 2: -rows})
    store.flush()
    assert store[0].features[0].unique().tolist() == [65504.0]
    assert store[0].features[2].unique().tolist() == [-65504.0]
    rows[1, 3] = float("nan")
    with pytest.raises(NumericsError, match="layer 2 contain NaN"):
        store.append(texts(2, seed=1)[0], {0: torch.zeros(2, WIDTH), 2: rows})


def test_pieces_hold_every_text_once_and_are_the_same_however_the_texts_were_captured(tmp_path: Path) -> None:
    examples = texts(*range(3, 30))
    target = tiny_model()
    once, twice = buffer(tmp_path / "once"), buffer(tmp_path / "twice", shard_bytes=9000)
    assert len(Streamed(target, [], once)) == 0
    capture(target, examples, [0], once)
    capture(target, examples[14:], [0], twice)
    capture(target, examples, [0], twice)
    pieces, others = Streamed(target, examples, once, 8000), Streamed(target, examples[::-1] * 2, twice, 8000)
    assert len(pieces) == len(others) > 3
    for number in range(len(pieces)):
        found = pieces.read(number)
        assert 0 < sum(len(text.tokens) for text in found) * once.row_bytes <= 8000
        assert [text.tokens.tolist() for text in found] == [text.tokens.tolist() for text in others.read(number)]
    assert sum(len(pieces.read(number)) for number in range(len(pieces))) == 27


def everything(source: Shards) -> list[Captured]:
    return [text for piece in range(len(source)) for text in source.read(piece)]


def test_texts_are_streamed_though_few_fit_on_the_disk(tmp_path: Path) -> None:
    examples, target = texts(*range(3, 30)), tiny_model()
    capture(target, examples, [0], whole := buffer(tmp_path / "whole"))
    expected = contents(everything(Streamed(target, examples, whole)))
    assert len(expected) == 27
    capture(target, examples, [0], small := buffer(tmp_path / "small", limit_bytes=8000))
    assert 0 < len(small) < 27
    source = Streamed(target, examples, small, 4000)
    for _ in range(2):
        assert contents(everything(source)) == expected
        assert small.bytes <= 8000
    capture(target, texts(4, 5, seed=9), [0], others := buffer(tmp_path / "others"))
    assert contents(everything(Streamed(target, examples, others))) == expected


def test_what_the_buffer_holds_is_not_captured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, target = texts(*range(3, 30)), tiny_model()
    capture(target, examples, [0], full := buffer(tmp_path))
    monkeypatch.setattr(target, "forward", lambda *arguments: pytest.fail("a pass was run"))
    assert len(everything(Streamed(target, examples, full))) == 27


def test_the_online_source_answers_and_captures_what_the_two_steps_would(tmp_path: Path) -> None:
    llm = LLM(make_folder(tmp_path / "model"), backend="hf", speculation=None)
    prompts = [TrainingPrompt.asked(f"question {number}") for number in range(7)]
    config = AnswerConfig(max_tokens=5, abreast=3)
    longest = min(config.longest_prompt + config.max_tokens, llm.engine.target.context_length)
    three = 3 * longest * row_bytes(32, LAYERS)
    source = Online(llm, prompts, config, (0,), three)
    assert [len(source.read(piece)) for piece in range(len(source))] == [3, 3, 1]
    assert len(Online(llm, prompts, config, (0,), three - 1)) == 4, "a piece may hold more than its bytes"
    assert len(Online(llm, prompts, config, (0,), 1)) == 7
    again = Online(llm, prompts[::-1], config, (0,), three)
    assert contents(again.read(0)) == contents(source.read(0)), "pieces depend on the order of a file"
    assert llm.tokenizer is not None
    for captured, prompt in zip(everything(source), sorted(prompts, key=lambda prompt: prompt.key), strict=True):
        tokens = captured.tokens.tolist()
        assert tokens[: captured.answer_start] == prompt.encode(llm.tokenizer)
        answer = llm.generate([tokens[: captured.answer_start]], config.params(prompt))[0].token_ids
        assert tuple(tokens[captured.answer_start :]) == answer
        example = Example(tokens, captured.answer_start)
        [(_, features)] = capture_each(llm.engine.target, [example], LAYERS)
        for layer in LAYERS:
            expected = features[layer].half()[:-1]
            torch.testing.assert_close(captured.features[layer][:-1], expected, atol=1e-2, rtol=1e-2)
    assert llm.engine.idle


def test_the_index_is_plain_json_with_checksums(tmp_path: Path) -> None:
    capture(tiny_model(), texts(5, 6), [0], buffer(tmp_path, target="t"))
    value = json.loads((tmp_path / "index.json").read_text())
    assert {key: value[key] for key in ("version", "target", "layers", "width")} == {
        "version": 1,
        "target": "t",
        "layers": [0, 2],
        "width": 32,
    }
    assert {*value["shards"][0]} == {"name", "bytes", "crc32", "texts"}
