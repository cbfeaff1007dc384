"""Rows behind an end are never asked, and a row that fails takes nothing that was accepted before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from oracles import Scripted, right
from table_model import TableModel
from tiny import VOCABULARY, tiny_model, tiny_native

from contract.cases import PROMPTS, by_id, configs, draft_models, exact_pairs, make
from contract.test_lossless import assert_clean, target_only_rules
from outrider import LLM, Choice, SamplingParams, Speculation
from outrider.drafters.base import Needs
from outrider.models.base import TargetModel, TargetOutput
from outrider.requests.stopping import Endings, FinishReason
from outrider.sampling.params import LogitsProcessor

PAIRS = [(case, rule) for case, rule in exact_pairs() if case != "none"]
MOST = 24


def outcome(choice: Choice) -> tuple[tuple[int, ...], str, FinishReason, object]:
    return choice.token_ids, choice.text, choice.finish_reason, choice.error


def watching(end: int, prompt: Sequence[int], asked: list[list[int]]) -> LogitsProcessor:
    """A matcher as grammars have them, that notes what it is asked once its end is in the output."""

    def matcher(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if end in history[len(prompt) :]:
            asked.append(list(history))
        return logits

    return matcher


@pytest.mark.parametrize(("case", "rule"), PAIRS)
def test_nothing_behind_an_end_token_is_asked(case: str, rule: str) -> None:
    plain = make("none").generate(PROMPTS, SamplingParams(max_tokens=MOST))
    llm = make(by_id(case), verifier=rule)
    asked: list[list[int]] = []
    for prompt, alone in zip(PROMPTS, plain, strict=True):
        for place in (2, 9):
            end = alone.token_ids[place]
            wish = SamplingParams(max_tokens=MOST, stop_token_ids=(end,), processors=(watching(end, prompt, asked),))
            (done,) = llm.generate([prompt], wish)
            assert done.choices[0].error is None
            assert done.token_ids == alone.token_ids[: alone.token_ids.index(end) + 1]
            assert done.finish_reason is FinishReason.STOP
    assert asked == []
    assert_clean(llm)


def test_the_tests_would_see_what_is_asked_behind_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endings, "reached", lambda self, path: False)
    asked: list[list[int]] = []
    prompt = PROMPTS[0]
    end = make("none").generate(prompt, SamplingParams(max_tokens=MOST))[0].token_ids[2]
    wish = SamplingParams(max_tokens=MOST, stop_token_ids=(end,), processors=(watching(end, prompt, asked),))
    make(by_id("draft_model")).generate(prompt, wish)
    assert asked


def text_model(drafts: str) -> LLM:
    """A tiny model that writes bytes, drafting for itself or not at all."""
    target, known = tiny_model(0, SIZE), {"self": tiny_model(0, SIZE)}
    method = {"none": "none", "self": "draft_model", "tree": "draft_model", "ngram": "ngram"}[drafts]
    options = {"self": {"model": "self"}, "tree": {"model": "self", "topk": 3}}.get(drafts, {})
    return LLM.from_model(
        target, byte_tokenizer(), speculation=Speculation(method, options=options), draft_models=known
    )


@pytest.mark.parametrize("drafts", ["self", "tree", "ngram"])
def test_nothing_behind_a_stop_string_is_asked(drafts: str) -> None:
    base, llm = text_model("none"), text_model(drafts)
    prompt = base.encode("the hat is the hat is the")
    (alone,) = base.generate([prompt], SamplingParams(max_tokens=MOST, ignore_eos=True))
    shown = [place for place in range(len(alone.text) - 2) if alone.text.find(alone.text[place : place + 2]) == place]
    asked: list[Sequence[int]] = []
    for place in shown[:6]:
        stop = alone.text[place : place + 2]

        def matcher(history: Sequence[int], logits: torch.Tensor, stop: str = stop) -> torch.Tensor:
            if stop in base.tokenizer.decode(history[len(prompt) :]):  # type: ignore[union-attr]
                asked.append(history[len(prompt) :])
            return logits

        wish = SamplingParams(max_tokens=MOST, ignore_eos=True, stop=(stop,), processors=(matcher,))
        assert outcome(llm.generate([prompt], wish)[0].choices[0]) == outcome(
            base.generate([prompt], wish)[0].choices[0]
        )
    assert asked == []


def too_long(length: int, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    if len(history) >= length:
        raise RuntimeError("too long")
    return logits


def runs_dry(length: int, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(torch.tensor(len(history) >= length), -torch.inf)


def leaves_memory(length: int, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.to("meta") if len(history) >= length else logits


def leaves(length: int, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    if len(history) >= length:
        raise SystemExit(3)
    return logits


def turns_nan(length: int, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(torch.tensor(len(history) >= length), torch.nan)


FAILING = [too_long, runs_dry, leaves_memory, leaves, pytest.param(turns_nan, marks=pytest.mark.faulty_drafter)]
"""Numbers that are none are none for a drafter too, which is told off; refusals it takes as they are."""


@pytest.mark.parametrize("fails", FAILING)
@pytest.mark.parametrize(("case", "rule"), [pair for pair in PAIRS if pair[1] in target_only_rules()])
def test_what_came_before_a_row_that_fails_is_kept(case: str, rule: str, fails: Callable[..., torch.Tensor]) -> None:
    """Wherever it fails: the same tokens, text, reason and error as plain decoding, at every length."""
    base, llm = make("none"), make(by_id(case), verifier=rule)
    for number, length in enumerate((1, 2, 3, 4, 5, 7, 9, 11)):
        prompt, heat = PROMPTS[number % 2], float(number // 2 % 2)
        failing = partial(fails, len(prompt) + length)
        wish = SamplingParams(max_tokens=MOST, temperature=heat, seed=3, logprobs=1, processors=(failing,))
        (alone,), (done,) = base.generate([prompt], wish), llm.generate([prompt], wish)
        assert len(alone.token_ids) == length
        assert outcome(done.choices[0]) == outcome(alone.choices[0])
        assert len(done.choices[0].logprobs or ()) == length
    assert_clean(llm)


@pytest.mark.parametrize("rule", ["rejection", "block", "multi-step", "traversal"])
def test_ratio_rules_keep_what_came_before_too(rule: str) -> None:
    """Drafts lie behind a history that fails; greedy texts say where each must end."""
    base = make("none")
    answers = {tuple(p): base.generate([p], SamplingParams(max_tokens=MOST))[0].token_ids for p in PROMPTS}
    llm = make(Scripted(right(answers), needs=Needs(deterministic=True)), verifier=rule)
    for prompt in PROMPTS:
        for length in range(1, 12):
            wish = SamplingParams(max_tokens=MOST, processors=(partial(too_long, len(prompt) + length),))
            assert outcome(llm.generate([prompt], wish)[0].choices[0]) == outcome(
                base.generate([prompt], wish)[0].choices[0]
            )


class _LosesItself:
    """A target whose logits are NaN in every row behind one token."""

    def __init__(self, target: TargetModel, token: int) -> None:
        self._target, self._token = target, token

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def forward(self, batch, cache, layers=()):  # type: ignore[no-untyped-def]
        output = self._target.forward(batch, cache, layers)
        logits = output.logits.clone()
        logits[batch.tokens[batch.wanted] == self._token] = torch.nan
        return TargetOutput(logits, output.hidden)


@pytest.mark.parametrize("case", [case for case, _ in configs("good") if case != "none"])
def test_a_target_that_loses_itself_at_one_token(case: str) -> None:
    texts = make("none").generate(PROMPTS, SamplingParams(max_tokens=MOST))
    token = texts[0].token_ids[4]
    (alone, done) = (
        make(config, target=_LosesItself(tiny_model(0), token)).generate(PROMPTS, SamplingParams(max_tokens=MOST))  # type: ignore[arg-type]
        for config in ("none", by_id(case))
    )
    assert [outcome(one.choices[0]) for one in done] == [outcome(one.choices[0]) for one in alone]
    assert alone[0].finish_reason is FinishReason.ERROR


def test_a_rule_that_breaks_down_ends_its_own_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    llm = make("ngram")
    expected = llm.generate(PROMPTS, SamplingParams(max_tokens=8))
    accept, asked = llm.engine.verifier.accept, iter(range(100))

    def breaks(tree, rows):  # type: ignore[no-untyped-def]
        if next(asked) == 5 + 2:
            raise ZeroDivisionError("no")
        return accept(tree, rows)

    llm.engine.verifier.accept = breaks  # type: ignore[method-assign]
    done = llm.generate(PROMPTS, SamplingParams(max_tokens=8))
    failed = [one.choices[0].error for one in done]
    assert [error is not None for error in failed] == [False, False, True, False, False]
    assert "the round failed with ZeroDivisionError: no" in str(failed[2])
    assert [one.token_ids for one in done if not one.choices[0].error] == [
        one.token_ids for one, error in zip(expected, failed, strict=True) if not error
    ]
    assert "the round failed for request" in caplog.text
    assert_clean(llm)


def test_tables_and_natives_are_what_the_others_run_on() -> None:
    """The tests above run on torch; one text each on the kernels and on a table shows that nothing hangs on it."""
    table = TableModel.random(VOCABULARY, seed=1)
    for target in (tiny_native(), table):
        known = draft_models("native") if target is not table else {"good": table, "bad": table}
        llm = LLM.from_model(
            target, speculation=Speculation("draft_model", options={"model": "good"}), draft_models=known
        )
        wish = SamplingParams(max_tokens=MOST, processors=(partial(too_long, len(PROMPTS[0]) + 5),))
        assert len(llm.generate(PROMPTS[0], wish)[0].token_ids) == 5
