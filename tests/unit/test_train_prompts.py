"""Prompts: what is read, what is refused, what is made."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_folder import TEMPLATE, make_folder

from outrider.errors import ConfigError, ModelError
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.train.data import decontaminate
from outrider.train.data import synthesise as synthesise_module
from outrider.train.data.decontaminate import EvaluationPrompts, evaluation_prompts, words
from outrider.train.data.prompts import TrainingPrompt, training_prompts, write_prompts
from outrider.train.data.synthesise import Sieve, Synthesis, SynthesisConfig, user_turn
from outrider.train.data.templates import templates

LONG = (
    "A lighthouse keeper on a small island finds a bottle with a letter in it every Monday. Write what the last letter "
    "says, and who has sent all of them over the years."
)
SHORT = "Which lighthouse keeper wrote letters?"
TINY = "Hello there!"
SECRET = EvaluationPrompts.of([LONG, SHORT, TINY])


def write(path: Path, *values: object) -> Path:
    path.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
    return path


@pytest.mark.parametrize(
    "line",
    [
        {"messages": [{"role": "user", "content": LONG}]},
        {
            "messages": [
                {"role": "system", "content": "x"},
                {"role": "user", "content": f"Please: {LONG.upper()} Thanks"},
            ]
        },
        {"prompt": f"### Question\n\n  {LONG.replace(' ', '   ').replace(',', '')}\n### Answer"},
        {"text": " ".join(words(LONG)[5:23])},
        {"text": f"He asked: “{SHORT}” and left."},
        {"prompt": "HELLO, there"},
    ],
)
def test_an_evaluation_prompt_is_refused_by_file_and_line_wherever_it_stands(tmp_path: Path, line: object) -> None:
    path = write(tmp_path / "mine.jsonl", {"prompt": "What is tea?"}, "", line)
    with pytest.raises(ConfigError, match=r"mine\.jsonl: line 3 contains the words '.*' of an evaluation prompt"):
        training_prompts([path], SECRET)


@pytest.mark.parametrize(
    "text",
    [
        "A lighthouse keeper on a small island finds a bottle of wine.",
        "Say hello there to her",
        "Which lighthouse keeper wrote the letters?",
        "Who has sent all of them?",
    ],
)
def test_a_prompt_that_only_shares_some_words_is_taken(tmp_path: Path, text: str) -> None:
    assert training_prompts([write(tmp_path / "p.jsonl", {"prompt": text})], SECRET) == [TrainingPrompt.asked(text)]


WORDS = st.lists(st.integers(0, 10**6).map(lambda n: f"w{n}"), min_size=decontaminate.LEAST, max_size=60, unique=True)


@settings(deadline=None)
@given(WORDS, st.text(max_size=30), st.text(max_size=30), st.data())
def test_every_prompt_is_found_within_any_text_and_so_is_a_long_part(
    listed: list[str], before: str, after: str, data: st.DataObject
) -> None:
    known = EvaluationPrompts.of([" ".join(listed)])
    assert known.found_in(f"{before} {', '.join(listed)}\n{after}") is not None
    enough = decontaminate.RUN + decontaminate.WINDOW - 1
    start = data.draw(st.integers(0, max(0, len(listed) - enough)))
    assert known.found_in(" ".join(["x", *listed[start : start + enough], "y"])) is not None
    assert known.found_in(" ".join(reversed(listed))) is None  # 60 runs against 51 hashes of 48 bits: one in 10^11
    assert EvaluationPrompts.read(known.packed()) == known


def test_the_hashes_that_come_with_the_package_know_what_figures_are_measured_on() -> None:
    known = evaluation_prompts()
    assert len(known.hashes) > 10_000
    asked = "Write a C++ program to find the nth Fibonacci number using recursion."
    assert known.found_in(f"Please do this for me: {asked} Thank you!") is not None
    head = "def has_close_elements(numbers: List[float], threshold: float) -> bool:"
    doc = "Check if in given list of numbers, are any two numbers closer to each other than given threshold."
    assert known.found_in(f"{head}\n    '''{doc}'''") is not None
    assert known.found_in("Write a C program to find the largest of three numbers.") is None


def test_lines_are_conversations_questions_or_texts_and_each_is_taken_once(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi?"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Why?"},
    ]
    path = write(
        tmp_path / "p.jsonl",
        {"messages": [*turns, {"role": "assistant", "content": "an answer that is not the target's"}]},
        {"messages": turns},
        {"prompt": "Who?"},
        {"text": "Once upon"},
    )
    found = training_prompts([path, path], SECRET)
    chat = TrainingPrompt(messages=tuple((turn["role"], turn["content"]) for turn in turns))
    assert found == [chat, TrainingPrompt.asked("Who?"), TrainingPrompt(text="Once upon")]
    write_prompts(tmp_path / "again.jsonl", found)
    assert training_prompts([tmp_path / "again.jsonl"], SECRET) == found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not a JSON object"),
        ("[1]", "line 1 is not a JSON object"),
        ({"turns": []}, "line 1 has no text"),
        ({"prompt": " "}, "line 1 has no text"),
        ({"messages": "hi"}, "line 1: every message needs"),
        ({"messages": [{"role": "user"}]}, "line 1: every message needs"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "line 1: a role must be one of"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "line 1: there is no user message"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        training_prompts([write(tmp_path / "p.jsonl", line)], SECRET)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        training_prompts([tmp_path / "none.jsonl"])
    with pytest.raises(ConfigError, match=r"there is no prompt in .*p\.jsonl"):
        training_prompts([write(tmp_path / "p.jsonl", "")])


def test_about_one_prompt_in_thirty_three_is_for_validation_and_always_the_same() -> None:
    chosen = [TrainingPrompt.asked(f"question {number}").for_validation for number in range(4000)]
    assert chosen == [TrainingPrompt.asked(f"question {number}").for_validation for number in range(4000)]
    assert 75 <= sum(chosen) <= 170  # 120 expected; outside of this by chance once in 10^4, but the hash is fixed


def test_filled_forms_are_diverse_and_leave_no_place_open() -> None:
    dice = random.Random(0)
    for kind in ("chat", "code"):
        texts = [templates().question(kind, dice) for _ in range(2000)]
        assert len(set(texts)) > 1200
        assert not [text for text in texts for name in templates().lists if f"{{{name}" in text]
        assert not [text for text in texts if " :: " in text or ".." in text.replace("...", "")]
        assert len({templates().system(kind, dice) for _ in range(300)}) > 10


def test_every_place_in_the_forms_has_a_list_with_enough_parts() -> None:
    texts = [form for family in templates().families for form in family["forms"]]
    texts += [text for systems in templates().systems.values() for text in systems]
    dice = random.Random(0)
    for text in texts:
        for _ in range(5):
            assert templates()._fill(text, dice)


def test_a_form_repeats_a_word_under_one_name_and_draws_another_under_a_second() -> None:
    dice = random.Random(0)
    for _ in range(50):
        first, again, other, capital = templates()._fill("{name}|{name}|{name2}|{Topic}", dice).split("|")
        assert first == again != other
        assert capital[0].isupper() or not capital[0].isalpha()


def test_the_sieve_drops_repeats_near_repeats_and_evaluation_prompts_and_counts_them() -> None:
    sieve = Sieve(SynthesisConfig(), SECRET)
    assert sieve.passes("How do I bake bread without an oven at home?", near=True)
    assert not sieve.passes("how do I bake BREAD without an oven, at home", near=False)
    assert not sieve.passes("How do I bake bread without an oven at home today?", near=True)
    assert sieve.passes("How do I bake bread without an oven at home today?", near=False)
    assert not sieve.passes(f"Dear model, {LONG}", near=True)
    assert sieve.dropped == {"asked before": 1, "much like others": 1, "an evaluation prompt": 1}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(make_folder(tmp_path_factory.mktemp("model")), backend="hf", speculation=None)


def test_a_user_turn_is_sampled_from_where_it_begins_to_where_it_ends(llm: LLM) -> None:
    assert llm.tokenizer is not None
    turn = user_turn(llm.tokenizer)
    special = llm.tokenizer.backend.token_to_id
    assert turn.stop_token_ids == (special("<|assistant|>"),)
    opening = turn.opening("be kind")
    assert opening[0] == special("<|system|>")
    assert opening[-1] == special("<|user|>")


def test_templates_that_hide_where_a_turn_ends_are_refused(tmp_path: Path) -> None:
    for template, message in ((TEMPLATE.split("<|assistant|>")[0], "does not end"), ("hello", "changes a user")):
        model = LLM(make_folder(tmp_path / message[:4], template=template), backend="hf", speculation=None)
        assert model.tokenizer is not None
        with pytest.raises(ModelError, match=message):
            user_turn(model.tokenizer)


def test_as_many_prompts_are_made_as_were_asked_for_and_a_seed_makes_the_same_again(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert llm.tokenizer is not None
    letters = {token for letter in "etaoin etaoin" for token in llm.tokenizer.encode(letter)}
    allowed = (*letters, *user_turn(llm.tokenizer).stop_token_ids)  # a random model's bytes would be no text
    monkeypatch.setattr(synthesise_module, "SamplingParams", partial(SamplingParams, allowed_token_ids=allowed))
    config = SynthesisConfig(max_tokens=8, least_words=1, abreast=8, sampled_share=0.2, most_repeated=1.0)
    first, second = (Synthesis(llm, config, held_out=SECRET) for _ in range(2))
    prompts = list(first.up_to(40))
    assert len(prompts) == len({prompt.key for prompt in prompts}) == 40
    sampled = [prompt for prompt in prompts if set(prompt.parts[0]) <= set("etaoin ")]
    assert len(sampled) == 8
    assert first.dropped["never ended"] > 0
    assert [prompt.key for prompt in second.up_to(40)] == [prompt.key for prompt in prompts]
    assert llm.engine.idle


def test_a_target_whose_turns_never_end_is_named(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesise_module, "SamplingParams", partial(SamplingParams, allowed_token_ids=(101,)))
    config = SynthesisConfig(max_tokens=8, sampled_share=1.0)
    with pytest.raises(ModelError, match=r"only 0 of 200 user's turns that .* sampled are prompts"):
        list(Synthesis(llm, config, held_out=SECRET).up_to(4))
    llm.engine.end_cancelled()
    assert llm.engine.idle


def test_asking_for_more_prompts_than_there_are_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(templates().lists, "topic", ["tea"])
    monkeypatch.setattr(
        "outrider.train.data.templates.PromptTemplates.question", lambda self, kind, dice: "What is tea made of?"
    )
    with pytest.raises(ConfigError, match=r"only 1 of .* prompts differ, and 30 are needed"):
        list(Synthesis(llm, SynthesisConfig(code_share=0.0, sampled_share=0.0), held_out=SECRET).up_to(30))
