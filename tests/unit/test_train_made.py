"""Prompts that the target makes: a larger number begins with the smaller one's, whatever happened in between."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tiny_folder import make_folder

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.train.data import prompt_store as store_module
from outrider.train.data import synthesise as synthesise_module
from outrider.train.data.decontaminate import EvaluationPrompts
from outrider.train.data.prompt_store import MADE, PROMPTS, SyntheticPrompts, synthesise_prompts
from outrider.train.data.prompts import TrainingPrompt, training_prompts, write_prompts
from outrider.train.data.synthesise import Synthesis, SynthesisConfig, shares, user_turn

NONE = EvaluationPrompts.of([])
CONFIG = SynthesisConfig(max_tokens=8, least_words=1, abreast=8, sampled_share=0.3, most_repeated=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(make_folder(tmp_path_factory.mktemp("model")), backend="hf", speculation=None)


@pytest.fixture
def llm(model: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """A random model that writes letters, so that its turns are prompts."""
    assert model.tokenizer is not None
    letters = {token for letter in "etaoin etaoin" for token in model.tokenizer.encode(letter)}
    allowed = (*letters, *user_turn(model.tokenizer).stop_token_ids)
    monkeypatch.setattr(synthesise_module, "SamplingParams", partial(SamplingParams, allowed_token_ids=allowed))
    yield model
    assert model.engine.idle


def made(
    llm: LLM, folder: Path, count: int, config: SynthesisConfig = CONFIG, target: str = ""
) -> list[TrainingPrompt]:
    folder.mkdir(exist_ok=True)
    return synthesise_prompts(llm, folder, count, config, target=target, held_out=NONE)


@given(st.integers(0, 400), st.floats(0, 1), st.floats(0, 1))
def test_one_prompt_more_is_one_more_of_one_part(count: int, code: float, sampled: float) -> None:
    config = SynthesisConfig(code_share=code, sampled_share=sampled)
    fewer, more = shares(count, config), shares(count + 1, config)
    assert sum(fewer.values()) == count
    assert sorted(more[cell] - fewer[cell] for cell in fewer) == [0, 0, 0, 1]


def test_more_prompts_are_those_of_asking_for_as_many_at_once(llm: LLM, tmp_path: Path) -> None:
    once = made(llm, tmp_path / "once", 60)
    grown = [made(llm, tmp_path / "grown", count) for count in (7, 25, 60)]
    assert [prompt.key for prompt in grown[-1]] == [prompt.key for prompt in once]
    assert [prompt.key for prompt in grown[0]] == [prompt.key for prompt in once[:7]]
    files = [(tmp_path / name / PROMPTS).read_bytes() for name in ("once", "grown")]
    assert files[0] == files[1]
    told = [json.loads((tmp_path / name / MADE).read_text()) for name in ("once", "grown")]
    assert told[0] == told[1]
    assert told[0]["synthesise"] == 60


def test_how_many_are_sampled_side_by_side_changes_nothing(llm: LLM, tmp_path: Path) -> None:
    first = made(llm, tmp_path, 12)
    other = SynthesisConfig(max_tokens=8, least_words=1, abreast=3, sampled_share=0.3, most_repeated=1.0)
    assert made(llm, tmp_path, 40, other)[:12] == first
    assert made(llm, tmp_path / "other", 40, other) == made(llm, tmp_path / "same", 40)


def test_a_sudden_end_costs_no_prompt_and_changes_none(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = made(llm, tmp_path / "once", 40)
    monkeypatch.setattr(store_module, "_SAVED_EVERY", 0.0)
    broken, limit, whole = tmp_path / "broken", 21, store_module.write_whole

    def ends(path: Path, *arguments: object) -> None:
        if len(training_prompts([path.parent / PROMPTS], NONE)) == limit:
            raise KeyboardInterrupt  # the prompts were written, but not how many they are
        whole(path, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_whole", ends)
        with pytest.raises(KeyboardInterrupt):
            made(llm, broken, 40)
    llm.engine.end_cancelled()
    assert len(SyntheticPrompts.of(broken).prompts) == limit - 1
    assert made(llm, broken, 40) == once
    assert training_prompts([broken / PROMPTS], NONE) == once


def test_prompts_of_before_it_was_counted_what_was_tried_are_kept(llm: LLM, tmp_path: Path) -> None:
    old = [TrainingPrompt.asked(f"What is the use of number {number}?") for number in range(10)]
    write_prompts(tmp_path / PROMPTS, old)
    (tmp_path / MADE).write_text(json.dumps({"synthesise": 10, "seed": 0, "abreast": 64}))
    grown = made(llm, tmp_path, 30)
    assert grown[:10] == old
    assert len({prompt.key for prompt in grown}) == 30


def test_prompts_of_ones_own_stand_behind_those_that_are_made(llm: LLM, tmp_path: Path) -> None:
    own = [TrainingPrompt.asked("What did I write myself?"), TrainingPrompt(text="Once upon a time")]
    write_prompts(tmp_path / PROMPTS, own)
    for count in (10, 20):
        prompts = made(llm, tmp_path, count)
        assert len(prompts) == count
        assert training_prompts([tmp_path / PROMPTS], NONE) == [*prompts, *own]


def test_a_smaller_number_uses_all_there_are_and_says_so(llm: LLM, tmp_path: Path) -> None:
    before = made(llm, tmp_path, 20)
    console = Console(record=True, width=200, file=io.StringIO())
    assert synthesise_prompts(llm, tmp_path, 5, CONFIG, console=console, held_out=NONE) == before
    assert "20 were made before; all are used, although --synthesise is 5" in console.export_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"code_share": 0.9}, "made with --prompt-code-share 0.4, not 0.9; give --prompt-code-share 0.4, or"),
        ({"seed": 3}, "made with --prompt-seed 0, not 3"),
        ({"top_p": 0.5}, "made with --prompt-top-p 0.9, not 0.5"),
    ],
)
def test_prompts_made_otherwise_are_refused_whatever_the_number(
    llm: LLM, tmp_path: Path, changed: dict[str, float], message: str
) -> None:
    made(llm, tmp_path, 10)
    before = (tmp_path / PROMPTS).read_bytes()
    options = {"max_tokens": 8, "least_words": 1, "sampled_share": 0.3, "most_repeated": 1.0} | changed
    for count in (5, 10, 20):
        with pytest.raises(ConfigError, match=message):
            made(llm, tmp_path, count, SynthesisConfig(**options))  # type: ignore[arg-type]
    assert (tmp_path / PROMPTS).read_bytes() == before


def test_another_model_uses_the_prompts_but_adds_none(llm: LLM, tmp_path: Path) -> None:
    before = made(llm, tmp_path, 10, target="one")
    assert made(llm, tmp_path, 10, target="two") == before
    with pytest.raises(ConfigError, match="were made by one, so two cannot add more; leave out --synthesise"):
        made(llm, tmp_path, 11, target="two")


@pytest.mark.parametrize("text", ["{", "[]", '{"synthesise": "x"}'])
def test_a_damaged_account_of_them_is_named(llm: LLM, tmp_path: Path, text: str) -> None:
    (tmp_path / MADE).write_text(text)
    with pytest.raises(ConfigError, match=r"prompts\.made\.json is damaged, .* remove the file"):
        made(llm, tmp_path, 10)


def test_what_was_dropped_is_told_in_words(llm: LLM, tmp_path: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    synthesise_prompts(llm, tmp_path, 40, CONFIG, console=console, held_out=NONE)
    assert "never ended" in console.export_text(clear=False)
    assert "{" not in console.export_text()


def test_texts_are_numbered_by_part_alone(llm: LLM) -> None:
    """What a part tries next does not depend on how many another one has tried."""
    config = SynthesisConfig(sampled_share=0.0, code_share=0.5)
    alone = Synthesis(llm, SynthesisConfig(sampled_share=0.0, code_share=0.0), held_out=NONE)
    chat = [prompt.key for prompt in alone.up_to(10)]
    mixed = [prompt.key for prompt in Synthesis(llm, config, held_out=NONE).up_to(20)]
    assert [key for key in mixed if key in chat] == chat
