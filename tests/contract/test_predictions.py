"""Predicted outputs: they save rounds, they never change a text, and nobody else's text is drafted from them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from byte_text import SIZE, byte_tokenizer
from tiny import VOCABULARY, tiny_model

from contract.cases import BACKENDS, LOSSLESS, PROMPTS, by_id, draft_models, is_exact
from contract.test_lossless import SETTINGS, assert_clean, plain
from outrider import LLM, SamplingParams, Speculation
from outrider.drafters import draftless
from outrider.drafters._prediction import PredictionCursor
from outrider.drafters.base import DraftContext, DraftSequence
from outrider.drafters.ngram import Ngram, NgramDrafter
from outrider.drafters.suffix import Suffix, SuffixDrafter
from outrider.errors import ConfigError

READERS = ["suffix", "ngram", "lookup_model"]
LONG = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=5)
"""A text that repeats nothing of itself."""


def made(method: str, rule: str = "coupled", backend: str = "hf") -> LLM:
    return LLM.from_model(
        BACKENDS[backend](0),
        speculation=Speculation(by_id(method, "bad"), rule),
        draft_models=draft_models(backend),
    )


def expected(wish: SamplingParams = LONG) -> list[tuple[int, ...]]:
    return [one.token_ids for one in LLM.from_model(tiny_model(), speculation=None).generate(PROMPTS, wish)]


@pytest.mark.parametrize("method", READERS)
def test_a_true_prediction_is_drafted_from_the_first_round_on(method: str) -> None:
    llm = made(method)
    for prompt, text in zip(PROMPTS, expected(), strict=True):
        (alone,) = llm.generate([prompt], LONG)
        (done,) = llm.generate([prompt], LONG, prediction=text)
        assert done.token_ids == alone.token_ids == text
        assert done.speculation.rounds <= 10
        assert done.speculation.rounds < alone.speculation.rounds / 2
        assert done.speculation.acceptance_rate > 0.95


@pytest.mark.parametrize("method", READERS)
def test_an_edited_prediction_is_followed_again_behind_the_edit(method: str) -> None:
    llm = made(method)
    for prompt, text in zip(PROMPTS, expected(), strict=True):
        wrong = [(token + 1) % VOCABULARY for token in text[20:24]]
        for edit in ([*wrong, *text[24:]], text[24:], [*wrong, *text[20:]]):
            prediction = [*text[:20], *edit]
            (done,) = llm.generate([prompt], LONG, prediction=prediction)
            assert done.token_ids == text
            assert done.speculation.rounds <= 22


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", ["greedy", "temperature", "penalties"])
@pytest.mark.parametrize("method", READERS)
def test_any_prediction_beside_any_other_gives_the_same_text(method: str, setting: str, backend: str) -> None:
    dice, texts = random.Random(1), plain(setting, backend)
    llm = made(method, backend=backend)
    for _ in range(3):
        predictions: list[Any] = []
        for prompt, text in zip(PROMPTS, texts, strict=True):
            noise = [dice.randrange(VOCABULARY) for _ in range(dice.randrange(1, 40))]
            cut = dice.randrange(len(text) + 1)
            predictions.append(dice.choice([None, (), noise, text, [*text[:cut], *noise, *text[cut:]], prompt * 3]))
        wishes = [{**vars(SETTINGS[setting]), "prediction": one} for one in predictions]
        assert [one.token_ids for one in llm.generate(PROMPTS, wishes)] == texts
    assert_clean(llm)


@pytest.mark.parametrize("rule", [rule for rule in LOSSLESS if is_exact(by_id("suffix"), rule)])
def test_every_rule_takes_predictions(rule: str) -> None:
    llm = made("suffix", rule)
    text = plain("greedy")[0]
    (done,) = llm.generate([PROMPTS[0]], SETTINGS["greedy"], prediction=text)
    assert done.token_ids == text
    assert done.speculation.rounds < len(text) / 2


def test_a_method_that_reads_predictions_serves_where_the_main_one_does_not() -> None:
    llm = made("draft_model")
    wishes = [{}, {"prediction": [1]}, {"prediction": [1], "algorithm": "draft_model"}]
    done = llm.generate([PROMPTS[0]] * 3, [{**vars(SETTINGS["greedy"]), **wish} for wish in wishes])
    names = [one.choices[0].algorithm for one in done]
    readers = [each.method for each in draftless() if each.needs.reads_prediction]
    assert names == ["draft_model", readers[0], "draft_model"]


def test_a_prediction_never_enters_the_corpus_that_requests_share() -> None:
    drafter = SuffixDrafter(Suffix(corpus_megabytes=1, num_draft_tokens=3))
    context = SimpleNamespace()

    def propose(key: str, tokens: list[int], prediction: list[int], prompt: int) -> tuple[int, ...]:
        one = DraftSequence(key, tokens, prompt, 8, 8, prediction=prediction)
        (tree,) = drafter.propose(DraftContext((one,), context, causal=False))
        return tree.tokens

    assert propose("first", [1, 2], [10, 11, 12, 13], 2) == (2, 10, 11, 12)
    drafter.close("first")
    assert propose("second", [3, 10, 11], [], 3) == (11,)


def test_no_match_runs_from_the_prompt_into_the_prediction() -> None:
    cursor = PredictionCursor([5, 6, 7, 8, 1, 2, 3], 2)
    assert cursor.follow([5, 6]) == (0, 8), "the anchor"
    assert cursor.follow([5, 6, 2]) == (6, 1), "one token ahead counts, and those of the prompt before it do not"
    assert cursor.follow([5, 6, 2, 9]) == (6, 0)


def test_the_nearest_of_equal_places_ahead_wins() -> None:
    text = [1, 2, 9, 4, 5, 1, 2, 9, 6, 7, 1, 2, 9, 8]
    cursor = PredictionCursor(text, 0)
    tokens = [1, 2, 9, 4]
    assert cursor.follow(tokens) == (4, 12)
    tokens += [50, 51, 2, 9]
    assert cursor.follow(tokens) == (8, 2)


def test_a_search_takes_bounded_time_however_often_a_token_comes() -> None:
    class Counting(list[int]):
        reads = 0

        def __getitem__(self, place: Any) -> Any:
            Counting.reads += 1
            return super().__getitem__(place)

    text = Counting([1] * 100_000)
    cursor = PredictionCursor(text, 0)
    Counting.reads = 0
    cursor.follow([2, *[1] * 40])
    assert 0 < Counting.reads < 2000


@pytest.mark.parametrize("drafter", [NgramDrafter(Ngram()), SuffixDrafter(Suffix())], ids=["ngram", "suffix"])
@pytest.mark.parametrize(("nodes", "depth"), [(1, 9), (4, 9), (9, 0), (9, 2)])
def test_the_budget_bounds_what_is_predicted(drafter: Any, nodes: int, depth: int) -> None:
    one = DraftSequence("r", [1], 1, nodes, depth, prediction=[2, 3, 4, 5, 6, 7])
    (tree,) = drafter.propose(DraftContext((one,), SimpleNamespace(), causal=False))
    drafter.close("r")
    assert tree.tokens == (1, 2, 3, 4, 5, 6, 7)[: 1 + min(nodes - 1, depth)]


def test_a_text_is_encoded_before_it_reaches_the_engine() -> None:
    tokenizer = byte_tokenizer()
    llm = LLM.from_model(tiny_model(0, SIZE), tokenizer, speculation="suffix")
    spec = llm.reader.prompt("abc", {"prediction": "de"}, {})
    assert spec[1].prediction == tuple(tokenizer.encode("de", add_special_tokens=False))
    with pytest.raises(ConfigError, match="prediction as text needs a tokenizer"):
        LLM.from_model(tiny_model()).generate([[1]], prediction="de")
    with pytest.raises(ConfigError, match="prediction names token id 64"):
        LLM.from_model(tiny_model()).generate([[1]], prediction=[64])


def test_a_prediction_longer_than_the_context_is_cut() -> None:
    llm = made("suffix")
    request = llm.engine.submit([1], SamplingParams(prediction=tuple([1] * 5000)))
    assert len(request.prediction) == 512
    llm.engine.cancel(request)
    llm.engine.end_cancelled()
