"""What users of vLLM, transformers and OpenAI would pass: what is clear is taken, the rest refused in one sentence."""

from __future__ import annotations

import pickle
import re
from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from tiny import tiny_model
from tiny_heads import tiny_head

from outrider import LLM, CacheConfig, RequestError, SamplingParams, SchedulerConfig, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import Ngram
from outrider.engine.admission import admit
from outrider.errors import ConfigError, OutriderError
from outrider.heads.checkpoint import write_head
from outrider.inputs import LOADED_OTHERWISE, OTHERWISE, SAME, read_params, read_prompts

IDS = byte_tokenizer().encode("the hat")
GREEDY = SamplingParams(max_tokens=6)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM.from_model(tiny_model(0, SIZE), byte_tokenizer())


# ---------------------------------------------------------------------------------------------------- prompts

ONE: dict[str, Any] = {
    "text": "the hat",
    "numpy text": np.str_("the hat"),
    "ids": IDS,
    "tuple": tuple(IDS),
    "range": range(5, 9),
    "generator of ids": lambda: (token for token in IDS),
    "numpy ids": np.array(IDS),
    "numpy scalars": [np.int64(token) for token in IDS],
    "small numpy ids": np.array(IDS, dtype=np.uint16),
    "tensor": torch.tensor(IDS),
    "tensor scalars": [torch.tensor(token) for token in IDS],
    "vllm text": {"prompt": "the hat"},
    "vllm ids": {"prompt_token_ids": IDS},
    "vllm both": {"prompt": "the hat", "prompt_token_ids": IDS, "multi_modal_data": None},
    "transformers": UserDict(input_ids=IDS, attention_mask=[1] * len(IDS)),
    "transformers batch": {"input_ids": torch.tensor([IDS]), "attention_mask": torch.ones(1, len(IDS), dtype=int)},
    "padded": {"input_ids": torch.tensor([[0, 0, *IDS]]), "attention_mask": torch.tensor([[0, 0] + [1] * len(IDS)])},
}


def given(value: Any) -> Any:
    return value() if callable(value) else value


@pytest.mark.parametrize("name", ONE)
def test_one_prompt_in_every_shape(name: str, llm: LLM) -> None:
    want = llm.generate([list(ONE[name])] if name == "range" else "the hat", GREEDY)[0]
    (done,) = llm.generate(given(ONE[name]), GREEDY)
    assert (done.prompt_token_ids, done.token_ids) == (want.prompt_token_ids, want.token_ids)
    *_, last = llm.stream(given(ONE[name]), GREEDY)
    assert last.choice is not None
    assert last.choice.token_ids == want.token_ids
    (nested,) = llm.generate([given(ONE[name])], GREEDY)
    assert nested.token_ids == want.token_ids
    assert llm.encode(given(ONE[name])) == list(want.prompt_token_ids)


SEVERAL: dict[str, Any] = {
    "list": ["the hat", "ha"],
    "tuple": ("the hat", "ha"),
    "generator": lambda: (text for text in ("the hat", "ha")),
    "numpy texts": np.array(["the hat", "ha"]),
    "mixed": [{"prompt": "the hat"}, byte_tokenizer().encode("ha")],
    "openai": {"prompt": ["the hat", "ha"]},
    "ids": [IDS, byte_tokenizer().encode("ha")],
    "padded": {
        "input_ids": np.array([IDS, [0] * (len(IDS) - 1) + byte_tokenizer().encode("ha")]),
        "attention_mask": np.array([[1] * len(IDS), [0] * (len(IDS) - 1) + [1]]),
    },
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_prompts_in_every_shape(name: str, llm: LLM) -> None:
    want = [llm.generate(text, GREEDY)[0].token_ids for text in ("the hat", "ha")]
    assert [done.token_ids for done in llm.generate(given(SEVERAL[name]), GREEDY)] == want


def test_a_matrix_of_ids_is_a_prompt_a_row(llm: LLM) -> None:
    rows = [[5, 6, 7], [8, 9, 10]]
    for matrix in (rows, np.array(rows), torch.tensor(rows), (tuple(row) for row in rows)):
        assert [list(done.prompt_token_ids) for done in llm.generate(matrix, GREEDY)] == rows


def test_no_prompts_are_no_completions(llm: LLM) -> None:
    for nothing in ([], (), iter(()), np.array([])):
        assert llm.generate(nothing, GREEDY) == []


NO_PROMPT: dict[str, tuple[Any, str]] = {
    "nothing": (None, "not None"),
    "bytes": (b"the hat", "not bytes; decode it"),
    "bytearray in a list": ([bytearray(b"a")], "prompts.0. .*not bytes"),
    "number": (5, "not 5"),
    "float": (np.float32(0.5), "text or token ids"),
    "set": ({1, 2}, "a set has no order"),
    "no ids": ([1.5, 2.5], "1.5, which is not a token id"),
    "float array": (np.array([1.0, 2.0]), "1.0, which is not a token id"),
    "bools": ([True, False], "True, which is not a token id"),
    "ids and text": ([1, "a"], "'a', which is not a token id"),
    "text and ids": (["a", 1], "prompts.1. must be text or token ids, not 1"),
    "negative": ([-1, 5], "token id -1"),
    "unknown": ([5, 10**9], "token id 1000000000"),
    "huge": ([5, 2**70], "token id"),
    "empty": ([[]], "empty"),
    "dict": ({"text": "a"}, "without prompt, prompt_token_ids or input_ids"),
    "empty dict": ({}, "without prompt"),
    "none in a dict": ({"prompt": None}, "without prompt"),
    "images": ({"prompt": "a", "multi_modal_data": {"image": 1}}, "'multi_modal_data', which is not supported"),
    "message": ([{"role": "user", "content": "a"}], r"prompts.0. .*pass conversations to chat\(\)"),
    "several in one": ([{"prompt": ["a", "b"]}], "prompts.0. holds 2 prompts"),
    "mask": ({"input_ids": [5, 6], "attention_mask": [1]}, "attention_mask whose shape differs"),
    "cube": (np.zeros((1, 1, 1), dtype=int), "prompts.0. must be one text or its token ids, not a list of prompts"),
    "model": (object(), "text or token ids, not <object"),
}


@pytest.mark.parametrize("name", NO_PROMPT)
def test_what_is_no_prompt_is_named(name: str, llm: LLM) -> None:
    value, message = NO_PROMPT[name]
    with pytest.raises(RequestError, match=message) as refused:
        llm.generate(value, GREEDY)
    assert "\n" not in str(refused.value)
    with pytest.raises(RequestError):
        llm.stream(value, GREEDY)


def test_a_stream_takes_one_prompt(llm: LLM) -> None:
    for several in (["a", "b"], ("a",), [[5, 6], [7]], [{"prompt": "a"}], np.array(["a", "b"]), torch.ones(2, 2)):
        for door in (llm.stream, llm.encode):
            with pytest.raises(RequestError, match=r"not a list of prompts; stream\(\) takes one prompt"):
                door(several)  # type: ignore[operator]


# --------------------------------------------------------------------------------------- sampling parameters


WISH = {"max_tokens": 5, "temperature": 0.8, "seed": 7}


def test_parameters_in_every_shape(llm: LLM) -> None:
    want = llm.generate("the hat", SamplingParams(**WISH))[0].token_ids
    shapes: list[Callable[[], Any]] = [
        lambda: llm.generate("the hat", WISH),
        lambda: llm.generate("the hat", **WISH),
        lambda: llm.generate("the hat", sampling_params=WISH),
        lambda: llm.generate("the hat", sampling_params=SamplingParams(**WISH)),
        lambda: llm.generate("the hat", [WISH]),
        lambda: llm.generate("the hat", (SamplingParams(**WISH),)),
        lambda: llm.generate("the hat", iter([WISH])),
        lambda: llm.generate("the hat", SamplingParams(max_tokens=50), **WISH),
        lambda: llm.generate("the hat", {"max_new_tokens": 5, "temperature": 0.8, "seed": 7}),
    ]
    assert [shape()[0].token_ids for shape in shapes] == [want] * len(shapes)
    for pieces in (llm.stream("the hat", WISH), llm.stream("the hat", **WISH), llm.stream("the hat", [WISH])):
        *_, last = pieces
        assert last.choice is not None
        assert last.choice.token_ids == want


def test_each_prompt_may_have_its_own(llm: LLM) -> None:
    done = llm.generate(["the hat"] * 3, [{"max_tokens": 1}, SamplingParams(max_tokens=2), None], ignore_eos=True)
    assert [len(each.token_ids) for each in done] == [1, 2, 256]
    with pytest.raises(RequestError, match="got 1 set of parameters for 2 prompts; give one for all"):
        llm.generate(["a", "b"], [GREEDY])


@pytest.mark.parametrize("name", SAME)
def test_what_others_call_a_parameter(name: str) -> None:
    value = {"stop": "x", "bad_words": [[1]], "repetition_penalty": 1.2}.get(SAME[name], 3)
    assert read_params(None, {name: value}, 1) == [SamplingParams(**{SAME[name]: value})]


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        (3, {}, "SamplingParams, a dict"),
        ("greedy", {}, "SamplingParams, a dict"),
        ([3], {}, "SamplingParams or a dict, not 3"),
        ({"max_token": 3}, {}, "no sampling parameter 'max_token'; did you mean max_tokens"),
        (None, {"beams": 3}, "no sampling parameter 'beams'; there are: temperature"),
        ({1: 3}, {}, "no sampling parameter 1"),
        ({"max_tokens": 3, "max_new_tokens": 4}, {}, "max_tokens is given twice, once as max_new_tokens"),
        (GREEDY, {"sampling_params": GREEDY}, "given twice"),
        ({"max_tokens": "3"}, {}, "max_tokens must be a whole number"),
        *[(None, {name: 1}, f"no sampling parameter '{name}': ") for name in OTHERWISE],
    ],
)
def test_what_are_no_parameters_is_named(params: Any, options: dict[str, Any], message: str, llm: LLM) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        llm.generate("the hat", params, **options)
    assert "\n" not in str(refused.value)


SAMPLE: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "min_tokens": 2,
    "max_tokens": 9,
    "seed": 3,
    "logprobs": 2,
    "prompt_logprobs": 2,
    "n": 2,
}


@pytest.mark.parametrize("name", SAMPLE)
def test_scalars_of_numpy_and_torch_are_numbers(name: str) -> None:
    value = SAMPLE[name]
    kinds = [np.asarray(value)[()], np.asarray(value), torch.tensor(value)]
    kinds += [np.float32(value)] if isinstance(value, float) else [np.uint8(value), np.int32(value)]
    for kind in kinds:
        params = SamplingParams(**{name: kind})
        assert params == SamplingParams(**{name: value})
        assert type(getattr(params, name)) is type(value)
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: np.array([value, value])})
    with pytest.raises(ConfigError, match=name):
        SamplingParams(**{name: np.bool_(True)})


@pytest.mark.parametrize("name", [item.name for item in fields(SamplingParams)])
def test_none_is_the_default_of_every_parameter_that_has_no_none_of_its_own(name: str) -> None:
    params = SamplingParams(**{name: None})
    assert getattr(params, name) == (None if name == "max_tokens" else getattr(SamplingParams(), name))


WRONG: tuple[Any, ...] = (
    -3,
    -0.5,
    1e40,
    float("nan"),
    True,
    "",
    "x",
    (),
    (-1,),
    ("",),
    [[]],
    {"x": 1},
    {1: "x"},
    {1: 1e40},
    object(),
)
"""Values that are wrong for some parameter; together they meet every check."""


@pytest.mark.parametrize("name", [item.name for item in fields(SamplingParams)])
def test_an_error_about_a_parameter_names_it_to_programs(name: str) -> None:
    """No caller has to read the sentence."""
    refused = 0
    for value in WRONG:
        try:
            SamplingParams(**{name: value})
        except ConfigError as error:
            refused += 1
            assert error.param == name, str(error)
    assert refused > 1


def test_an_error_that_two_parameters_make_names_one() -> None:
    with pytest.raises(ConfigError) as refused:
        SamplingParams(min_tokens=3, max_tokens=2)
    assert refused.value.param == "min_tokens"
    with pytest.raises(ConfigError) as refused:
        SamplingParams(temperature=1e-9)
    assert refused.value.param == "temperature"


@pytest.mark.parametrize(
    "wish",
    [
        {"logit_bias": {10**6: 1.0}},
        {"stop_token_ids": [10**6]},
        {"allowed_token_ids": [10**6]},
        {"bad_words": [[10**6]]},
        {"prediction": [10**6]},
        {"algorithm": "crystal"},
    ],
)
def test_an_error_of_the_engine_names_its_parameter(wish: dict[str, Any], llm: LLM) -> None:
    with pytest.raises(ConfigError) as refused:
        llm.generate("the hat", max_tokens=3, **wish)
    assert [refused.value.param] == [*wish]


@pytest.mark.parametrize(("ids", "code"), [([], None), ([5] * 10_000, "context_length_exceeded"), ([10**6], None)])
def test_an_error_about_the_prompt_names_it(ids: list[int], code: str | None, llm: LLM) -> None:
    with pytest.raises(RequestError) as refused:
        llm.generate([ids], max_tokens=3)
    assert (refused.value.param, refused.value.code) == ("prompt", code)


def test_errors_keep_what_they_name_on_their_way_to_other_processes() -> None:
    for kind in (ConfigError, RequestError, OutriderError):
        copy = pickle.loads(pickle.dumps(kind("a sentence", param="seed", code="a_code")))
        assert (type(copy), str(copy), copy.param, copy.code) == (kind, "a sentence", "seed", "a_code")


def test_a_top_k_of_minus_one_keeps_all() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    with pytest.raises(ConfigError, match="top_k must be at least -1, not -2"):
        SamplingParams(top_k=-2)


def test_ids_in_every_kind_of_sequence() -> None:
    for ids in ((3, 5), [3, 5], np.array([3, 5]), torch.tensor([3, 5]), (i for i in (3, 5)), {3: 0, 5: 0}.keys()):
        assert SamplingParams(stop_token_ids=ids).stop_token_ids == (3, 5)  # type: ignore[arg-type]
    for ids in ([3, 5], np.array([3, 5])):
        params = SamplingParams(allowed_token_ids=ids, bad_words=[ids])  # type: ignore[arg-type]
        assert (params.allowed_token_ids, params.bad_words) == ((3, 5), ((3, 5),))
        assert all(type(token) is int for token in params.allowed_token_ids or ())


def test_a_bias_may_be_named_as_openai_names_it(llm: LLM) -> None:
    assert SamplingParams(logit_bias={"50": -100}).logit_bias == {50: -100}
    assert SamplingParams(logit_bias={np.int64(50): np.float32(1.5)}).logit_bias == {50: 1.5}
    favourite = llm.generate("the hat", max_tokens=1)[0].token_ids[0]
    banned = llm.generate("the hat", max_tokens=1, logit_bias={str(favourite): -100})[0]
    assert banned.token_ids[0] != favourite


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 100.0])
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("bias", [-1e28, -1e6, 1e28])
def test_no_strength_that_is_allowed_leaves_float32(bias: float, penalty: float, temperature: float, llm: LLM) -> None:
    """The strongest of everything together: a token comes out, and never a complaint about the target's numbers."""
    for truncation in ({}, {"top_k": 10**30}, {"top_p": 1e-9}, {"min_p": 5e-324}, {"top_k": 3, "min_p": 1.0}):
        done = llm.generate(
            "the hat",
            max_tokens=4,
            temperature=temperature,
            seed=1,
            logit_bias=dict.fromkeys(range(SIZE), bias),
            repetition_penalty=penalty,
            presence_penalty=100.0,
            frequency_penalty=-100.0,
            **truncation,
        )[0]
        assert done.choices[0].error is None
        assert done.token_ids


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_processors_that_return_no_numbers_are_blamed_for_it(wrong: float, llm: LLM) -> None:
    def odd(history: Any, logits: torch.Tensor) -> torch.Tensor:
        logits[3] = wrong
        return logits

    for temperature in (0.0, 1.0):
        done = llm.generate("the hat", processors=odd, temperature=temperature)[0]
        assert "a logits processor returned NaN or infinity" in (done.choices[0].error or "")


def test_processors_that_ban_every_token_are_among_what_to_loosen(llm: LLM) -> None:
    done = llm.generate("the hat", processors=lambda history, logits: torch.full_like(logits, -torch.inf))[0]
    assert done.choices[0].error is not None
    fields_named = ("allowed_token_ids", "bad_words", "logit_bias", "processors")
    assert all(field in done.choices[0].error for field in fields_named)


@pytest.mark.parametrize("extra", [{}, {"prompt_logprobs": 1}, {"temperature": 1.0, "seed": 1, "n": 2}])
def test_where_no_token_is_to_come_nobody_is_asked_about_one(extra: dict[str, Any], llm: LLM) -> None:
    asked: list[Any] = []

    def refuse(history: Any, logits: torch.Tensor) -> torch.Tensor:
        asked.append(history)
        raise ValueError("this history is not mine")

    (done,) = llm.generate("the hat", max_tokens=0, processors=refuse, **extra)
    assert asked == []
    assert [(choice.finish_reason, choice.error) for choice in done.choices] == [("length", None)] * len(done.choices)
    assert (done.text, done.token_ids) == ("", ())
    plain = llm.generate("the hat", max_tokens=0, **extra)[0]
    assert done.prompt_logprobs == plain.prompt_logprobs
    assert llm.generate("the hat", max_tokens=1, processors=refuse, **extra)[0].finish_reason == "error"
    assert asked


# -------------------------------------------------------------------------------------------------- bad words


def test_bad_words_may_be_texts(llm: LLM) -> None:
    tokenizer = byte_tokenizer()
    text = llm.generate("the hat", max_tokens=24, ignore_eos=True)[0].text
    word = text[5:7]
    banned = llm.generate("the hat", max_tokens=24, ignore_eos=True, bad_words=word)[0]
    forms = [tokenizer.encode(word), tokenizer.encode(f" {word}")]
    same = llm.generate("the hat", max_tokens=24, ignore_eos=True, bad_words=forms)[0]
    assert banned.token_ids == same.token_ids
    assert banned.text != text


def test_a_bad_word_is_banned_with_and_without_a_space_before_it(llm: LLM) -> None:
    """``ha`` is one token and `` ha`` another: wanting nothing else, the model writes neither."""
    tokenizer = byte_tokenizer()
    forms = [tokenizer.encode("ha"), tokenizer.encode(" ha")]
    assert [len(ids) for ids in forms] == [1, 1]
    wanted = {ids[0]: 50.0 for ids in forms}
    assert set(llm.generate("x", max_tokens=8, logit_bias=wanted)[0].token_ids) <= {ids[0] for ids in forms}
    for word in ("ha", " ha"):
        done = llm.generate("x", max_tokens=8, logit_bias=wanted, bad_words=[word], ignore_eos=True)[0]
        assert not {ids[0] for ids in forms} & set(done.token_ids)


def test_bad_words_as_text_need_a_tokenizer() -> None:
    bare = LLM.from_model(tiny_model())
    with pytest.raises(ConfigError, match="bad_words as text need a tokenizer"):
        bare.generate([[5, 6]], bad_words=["x"])


# ------------------------------------------------------------------------------------------------ speculation


def chosen(speculation: Any) -> Any:
    plan = Speculation.of(speculation)
    return plan.drafter_config(), plan.verifier


@pytest.mark.parametrize(
    ("speculation", "config", "verifier"),
    [
        (None, "none", "coupled"),
        (False, "none", "coupled"),
        (True, "suffix", "coupled"),
        ("NGRAM", Ngram(), "coupled"),
        (Ngram(max_match=3), Ngram(max_match=3), "coupled"),
        ({"method": "ngram"}, Ngram(), "coupled"),
        ({"method": "ngram", "verifier": "rejection", "max_match": 5}, Ngram(max_match=5), "rejection"),
        ({"method": "ngram", "options": {"max_match": 5}, "min_match": 1}, Ngram(max_match=5, min_match=1), "coupled"),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5, "prompt_lookup_min": 3},
            Ngram(num_draft_tokens=3, max_match=5, min_match=3),
            "coupled",
        ),
        (
            {"method": "ngram", "model": None, "num_speculative_tokens": np.int64(3)},
            Ngram(num_draft_tokens=3),
            "coupled",
        ),
        (
            {"method": "draft_model", "model": Path("a"), "num_speculative_tokens": 5},
            DraftModel(model="a", num_steps=5),
            "coupled",
        ),
        ({"method": "eagle3", "model": "a"}, "eagle3", "coupled"),
        ({"method": "specinfer", "model": ["a", "b"]}, "specinfer", "coupled"),
        ({"method": "specinfer", "models": "a"}, "specinfer", "coupled"),
        ({"model": "a", "num_speculative_tokens": 2}, "lookup_model", "coupled"),
        ({"head": Path("a")}, "lookup_model", "coupled"),
        ({}, "suffix", "coupled"),
    ],
)
def test_speculation_in_every_shape(speculation: Any, config: Any, verifier: str) -> None:
    found, rule = chosen(speculation)
    assert rule == verifier
    assert found == config if not isinstance(config, str) else found.method == config


def test_models_reach_the_field_that_holds_them() -> None:
    assert chosen({"method": "eagle3", "model": "a"})[0].head == "a"
    assert chosen({"method": "specinfer", "model": ["a", "b"]})[0].models == ("a", "b")
    assert chosen({"method": "specinfer", "models": "a"})[0].models == ("a",)
    automatic = chosen({"model": "a", "num_speculative_tokens": 2})[0]
    assert (automatic.model, automatic.num_steps) == ("a", 2)


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        (3, "speculation must be a method's name"),
        (["ngram"], "speculation must be a method's name"),
        (Ngram, "speculation must be a method's name"),
        ("ngrm", r"no drafting method 'ngrm' \(did you mean ngram\?\); there are: auto, "),
        ({"method": "mtp"}, "no drafting method 'mtp'; there are: auto, "),
        ({"method": 3}, "method must be"),
        ({"method": "ngram", "verifier": 3}, "verifier must be"),
        ({"method": "ngram", "options": 3}, "options must be a dict"),
        ({"method": "ngram", "model": "a"}, "ngram has no option 'model'"),
        ({"method": "ngram", "draft_tensor_parallel_size": 1}, "ngram has no option 'draft_tensor_parallel_size'"),
        ({"method": "ngram", "prompt_lookup_max": 4, "max_match": 5}, "max_match is given twice"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "num_draft_tokens must be a whole number"),
        ({"model": "a", "models": ["b"]}, "auto takes its draft models in one of"),
        ({"method": "specinfer", "models": 3}, "draft models must be given as"),
        ({"model": 3}, "draft models must be given as"),
    ],
)
def test_what_is_no_speculation_is_named(speculation: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        chosen(speculation)
    assert "\n" not in str(refused.value)


def test_every_door_takes_them(llm: LLM) -> None:
    plan = {"method": "ngram", "num_speculative_tokens": 3}
    want = llm.generate("the hat", GREEDY)[0].token_ids
    for made in (llm.speculating(plan), LLM.from_model(tiny_model(0, SIZE), byte_tokenizer(), speculation=plan)):
        assert made.drafter_config == Ngram(num_draft_tokens=3)
        assert made.generate("the hat", GREEDY)[0].token_ids == want


# -------------------------------------------------------------------------------------------- making an LLM


def test_a_draft_model_goes_behind_lookup(folder: Path) -> None:
    want = LLM(folder, speculation=None).generate([[5, 6, 7, 8]], GREEDY)[0].token_ids
    for argument in (folder, str(folder), [folder]):
        llm = LLM(folder, speculation={"min_survival": 0.0}, draft_model=argument, draft_quantization="none")
        assert llm.drafter_config.method == "lookup_model"
        assert llm.drafter_config.model == str(folder)  # type: ignore[attr-defined]
        done = llm.generate([[5, 6, 7, 8]], GREEDY)[0]
        assert done.token_ids == want
        assert sum(done.speculation.accepted) > 0
    several = LLM(folder, draft_model=[folder, str(folder)], draft_quantization="none")
    assert several.drafter_config.method == "specinfer"
    named = LLM(folder, speculation="draft_model", draft_model=folder, draft_quantization="none")
    assert named.drafter_config == DraftModel(model=str(folder))
    rule = LLM(folder, speculation=Speculation(verifier="rejection"), draft_model=folder, draft_quantization="none")
    assert (rule.drafter_config.method, rule.verifier.name) == ("lookup_model", "rejection")


def test_a_head_goes_behind_lookup(folder: Path, tmp_path: Path) -> None:
    target = LLM(folder, speculation=None).engine.target
    write_head(tmp_path / "head", tiny_head("eagle3", target))
    for method in ("auto", "eagle3"):
        llm = LLM(folder, speculation=method, head=tmp_path / "head")
        assert llm.drafter_config.needs.reads_hidden
        assert str(tmp_path / "head") in repr(llm.drafter_config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_model": "a", "head": "b"}, "give either draft_model or head, not both"),
        ({"head": "nowhere"}, "head: nowhere is no trained head; .*draft_model"),
        ({"speculation": "ngram", "draft_model": "a"}, "ngram uses no draft model; leave draft_model out"),
        ({"speculation": None, "draft_model": "a"}, "none uses no draft model; leave draft_model out"),
        ({"speculation": {"model": "a"}, "draft_model": "a"}, "already names its draft models; leave draft_model out"),
        ({"speculation": DraftModel(model="a"), "draft_model": "a"}, "already names its draft models"),
        ({"speculation": "draft_model", "draft_model": ["a", "b"]}, "takes one draft model, not 2"),
        ({"speculation": "draft_model"}, "draft_model needs a draft model; name one as draft_model"),
        ({"speculation": "specinfer"}, "specinfer needs draft models; name them as draft_model"),
        ({"speculation": "eagle3"}, "eagle3 needs a trained head; name its folder as head"),
        ({"draft_model": 3}, "draft models must be given as folders"),
        ({"context_length": "64"}, "context_length must be a whole number"),
        ({"context_length": True}, "context_length must be a whole number"),
        ({"context_length": 64.0}, "context_length must be a whole number"),
        ({"cache": 3}, "cache must be a CacheConfig or a dict, not 3"),
        ({"cache": {"row": 3}}, "cache has no option 'row'"),
        ({"cache": SchedulerConfig()}, "cache must be a CacheConfig"),
        ({"scheduler": {"max_running": 0}}, "max_running must be at least 1"),
        ({"dtype": torch.int8}, "no dtype 'int8'"),
    ],
)
def test_what_makes_no_model_is_named(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(OutriderError, match=message) as refused:
        LLM(folder, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_model_len", "there is no argument 'max_model_len': write context_length"),
        ("n_ctx", "write context_length"),
        ("torch_dtype", "write dtype"),
        ("speculative_config", "pass the dict as speculation"),
        ("tensor_parallel_size", "a model runs on one device"),
        ("n_gpu_layers", 'device="cuda" puts the whole model on the GPU'),
        ("temperature", r"pass it to generate\(\), chat\(\) or stream\(\)"),
        ("max_new_tokens", r"pass it to generate\(\)"),
        ("specualtion", "there is no argument 'specualtion'; did you mean speculation"),
        ("zzz", "there is no argument 'zzz'; there are: speculation, "),
        *[(name, f"^there is no argument '{name}': ") for name in LOADED_OTHERWISE],
    ],
)
def test_what_others_call_an_argument_is_told(name: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        LLM(folder, **{name: 1})  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("draft_model", "there is no argument 'draft_model'; did you mean draft_models"),
        ("context_length", "there is no argument 'context_length'; there are: speculation, draft_models, heads"),
        ("max_model_len", "there is no argument 'max_model_len'; "),
        ("top_p", r"pass it to generate\(\)"),
    ],
)
def test_a_model_in_memory_takes_no_other_arguments(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM.from_model(tiny_model(), **{name: 1})  # type: ignore[arg-type]


def test_what_is_told_of_others_arguments_names_our_own() -> None:
    """The table speaks of arguments that exist, and of none that would be taken."""
    ours = {item.name for item in signature(LLM).parameters.values() if item.kind is item.KEYWORD_ONLY}
    assert not ours & LOADED_OTHERWISE.keys()
    written = {name for text in LOADED_OTHERWISE.values() for name in re.findall(r"\w+(?==)|(?<=write )\w+$", text)}
    assert written <= ours
    for text in LOADED_OTHERWISE.values():
        for whole, part in re.findall(r'(cache|scheduler)=\{"(\w+)"', text):
            assert part in {item.name for item in fields({"cache": CacheConfig, "scheduler": SchedulerConfig}[whole])}


@pytest.mark.parametrize("model", [None, 3, torch.nn.Linear(1, 1), ["a"]])
def test_what_is_no_model_is_named(model: Any) -> None:
    with pytest.raises(ConfigError, match="model must be a folder, a hub id or a file"):
        LLM(model)


def test_torch_s_own_names_and_dicts_make_a_model(folder: Path) -> None:
    llm = LLM(
        folder,
        dtype=torch.float32,
        device=torch.device("cpu"),
        context_length=np.int64(64),  # type: ignore[arg-type]
        cache={"rows": np.int32(128), "page_size": 8},
        scheduler={"max_running": 2},
    )
    pool = llm.engine.pool
    assert (pool.rows, llm.engine.target.context_length) == (128, 64)
    for options in ({"dtype": None, "device": None, "quantization": None, "backend": None}, {"cache": CacheConfig()}):
        assert LLM(folder, **options).generate([[5, 6]], GREEDY)  # type: ignore[arg-type]


def test_reading_prompts_keeps_what_it_was_given() -> None:
    given = [[5, 6], "a"]
    assert read_prompts(given) == [[5, 6], "a"]
    read_prompts(given)[0].append(7)  # type: ignore[union-attr]
    assert given == [[5, 6], "a"]


def test_a_prompt_past_the_context_is_refused_before_its_tokens_are_read() -> None:
    class Unread(Sequence[int]):
        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("nobody needs to read it")

    with pytest.raises(RequestError, match="1000000 tokens, but the context holds 8"):
        admit("r1", Unread(), SamplingParams(), choice=0, seed=None, tokenizer=None, vocabulary=9, longest=8)


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_bias_of_endless_digits_is_refused(digits: int) -> None:
    with pytest.raises(ConfigError, match="logit_bias takes token ids"):
        SamplingParams(logit_bias={"9" * digits: 1.0})
