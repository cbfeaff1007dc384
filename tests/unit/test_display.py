"""What an interpreter and a notebook show of a model and of its answers."""

from __future__ import annotations

import copy
import html
import pickle
import re
from dataclasses import asdict, replace

import pytest
from byte_text import SIZE, byte_tokenizer
from tiny import tiny_model

from outrider import LLM, Choice, Completion, SamplingParams, Speculation
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import Ngram
from outrider.metrics import PhaseSeconds, RowCosts, SpeculationStats
from outrider.requests.request import TokenLogprob

SHADED = re.compile(r"<span style=[^>]*>(.*?)</span>", re.S)


def drafting(speculation: object = None) -> LLM:
    target = tiny_model(0, SIZE)
    plan = DraftModel(model="self", num_steps=3) if speculation is None else speculation
    return LLM.from_model(target, byte_tokenizer(), speculation=plan, draft_models={"self": target})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done() -> Completion:
    return drafting().generate("the hat", max_tokens=24, ignore_eos=True, n=2, temperature=1.0, seed=1)[0]


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        (SamplingParams(), "SamplingParams()"),
        (SamplingParams(max_tokens=256, temperature=0), "SamplingParams()"),
        (SamplingParams(max_tokens=None, stop="x"), "SamplingParams(max_tokens=None, stop=('x',))"),
        (SamplingParams(logit_bias={"3": 1}, seed=0), "SamplingParams(logit_bias={3: 1}, seed=0)"),
    ],
)
def test_parameters_show_what_differs(params: SamplingParams, shown: str) -> None:
    assert repr(params) == shown
    assert eval(shown) == params


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        (Speculation(), "Speculation()"),
        (Speculation("ngram", options={"max_match": 3}), "Speculation('ngram', options={'max_match': 3})"),
        (Speculation(verifier="rejection"), "Speculation(verifier='rejection')"),
        (Speculation(Ngram()), f"Speculation({Ngram()!r})"),
    ],
)
def test_speculation_shows_what_differs(plan: Speculation, shown: str) -> None:
    assert repr(plan) == shown
    assert eval(shown) == plan


def test_a_model_is_told_in_one_line() -> None:
    llm = drafting("ngram")
    told = "LLM('bytes', speculation='ngram', verifier='coupled', backend='hf', device='cpu', context_length=512)"
    assert repr(llm) == told
    assert repr(llm.speculating(None)) == told.replace("ngram", "none")
    shown = llm._repr_html_()
    assert all(f"<td>{text}</td>" in shown for text in ("speculation", "ngram", "512", "backend", "hf"))
    llm.close()
    assert "closed" in llm._repr_html_()


def test_answers_are_told_in_one_line(done: Completion) -> None:
    assert repr(done) == f"Completion(text={done.text!r}, tokens=24, finish_reason='length', choices=2)"
    assert repr(done.choices[1]).startswith("Choice(index=1, text=")
    long = drafting().generate("the hat", max_tokens=200, ignore_eos=True)[0]
    assert len(repr(long)) < 140
    assert len(repr(long.choices[0])) < 140
    *_, last = drafting().stream("the hat", max_tokens=5, ignore_eos=True)
    assert re.fullmatch(r"Chunk\(index=0, text='.*', tokens=\d, drafted=\d, finish_reason='length'\)", repr(last), re.S)


def test_every_token_says_where_it_came_from(done: Completion) -> None:
    for choice in done.choices:
        assert len(choice.from_draft) == len(choice.token_ids)
        assert sum(choice.from_draft) == sum(choice.speculation.accepted) > 0
        assert not all(choice.from_draft)
        assert "".join(text for text, _ in choice.pieces()) == choice.text
    plain = drafting("none").generate("the hat", max_tokens=5)[0].choices[0]
    assert not any(plain.from_draft)
    assert plain.pieces() == [(plain.text, False)]


def test_streamed_and_whole_answers_name_the_same_drafts(done: Completion) -> None:
    marks: dict[int, list[bool]] = {}
    for chunk in drafting().stream("the hat", max_tokens=24, ignore_eos=True, n=2, temperature=1.0, seed=1):
        marks.setdefault(chunk.index, []).extend(i < chunk.drafted for i in range(len(chunk.token_ids)))
        if chunk.choice:
            assert list(chunk.choice.from_draft) == marks[chunk.index]
    assert [tuple(marks[choice.index]) for choice in done.choices] == [choice.from_draft for choice in done.choices]


def test_a_notebook_shows_accepted_drafts_in_another_shade(done: Completion) -> None:
    shown = done._repr_html_()
    accepted = ["".join(text for text, drafted in choice.pieces() if drafted) for choice in done.choices]
    assert "".join(map(html.unescape, SHADED.findall(shown))) == "".join(accepted)
    assert html.escape(done.figures) in shown
    assert re.fullmatch(r"[\d.]+ tokens/s · [\d.]+ tokens/round · 48 tokens · length · \d+ accepted .*", done.figures)
    assert "accepted drafts" not in drafting("none").generate("the hat", max_tokens=5)[0].figures


def test_a_notebook_says_first_whether_it_got_faster() -> None:
    """Where plain rounds among them tell it: as the prediction does, and in words."""
    wish = {"max_tokens": 200, "ignore_eos": True}
    done = drafting("ngram").generate("the hat", **wish)[0]
    rounds = {1: 10, 3: 10}
    timed = PhaseSeconds(
        draft=0.1, verify=0.3, other=0.1, rounds=20, tokens=40, by_rows=RowCosts(rounds, {1: 0.2, 3: 0.2}, [0.02] * 10)
    )
    stats = SpeculationStats(rounds=20, emitted=40, drafted=[20], tested=[20], accepted=[20], levels=20)
    choice = replace(done.choices[0], speculation=stats)
    faster = replace(done, choices=(choice,), seconds=timed)
    assert faster.prediction is not None
    assert faster.figures.startswith(
        f"{faster.prediction.speedup:.2f} × plain (predicted) · 80.0 tokens/s · 2.00 tokens"
    )
    assert not re.search("[α-ω]", faster.figures + faster._repr_html_())


def test_a_notebook_shows_a_choice(done: Completion) -> None:
    choice = done.choices[1]
    shown = choice._repr_html_()
    accepted = "".join(text for text, drafted in choice.pieces() if drafted)
    assert "".join(map(html.unescape, SHADED.findall(shown))) == accepted
    assert " tokens/round · 24 tokens · length · " in shown
    assert "<small>1 token · length</small>" in drafting("none").generate("x", max_tokens=1)[0].choices[0]._repr_html_()


def test_everything_public_is_shown_for_a_person() -> None:
    """No addresses, no digits nobody reads, and one line."""
    llm = drafting()
    stream = llm.stream("the hat", max_tokens=24, ignore_eos=True, n=2, temperature=1.0, seed=1)
    assert re.fullmatch(r"Stream\(open=[0-2], unread=\d+\)", repr(stream)), "decoding goes on meanwhile"
    *_, last = stream
    assert repr(stream) == "Stream(open=0, unread=0)"
    stream.close()
    assert repr(stream) == "Stream(closed)"
    done = llm.generate("the hat", max_tokens=24, ignore_eos=True, logprobs=2, prompt_logprobs=0)[0]
    choice = done.choices[0]
    assert choice.logprobs is not None
    assert done.prompt_logprobs is not None
    shown = [llm, stream, last, done, choice, done.seconds, done.seconds.by_rows, done.prediction, choice.speculation]
    assert repr(llm.engine) == "Engine(HFModel, running=0, waiting=0)"
    shown += [*choice.logprobs, *done.prompt_logprobs, llm.tokenizer, llm.drafter_config]
    for item in shown:
        assert not re.search(r"0x[0-9a-f]{4}|\d\.\d{9}|\n", repr(item)), repr(item)
    assert repr(llm.tokenizer) == f"Tokenizer('bytes', vocab_size={llm.tokenizer.vocab_size})"  # type: ignore[union-attr]
    assert repr(TokenLogprob(5, -1 / 3)) == "TokenLogprob(token_id=5, logprob=-0.3333, top=())"
    likely = TokenLogprob(5, -1 / 3, ((5, -1 / 3), (7, -2.0)))
    assert eval(repr(likely)) == TokenLogprob(5, -0.3333, ((5, -0.3333), (7, -2.0)))
    assert eval(repr(TokenLogprob(5, -2.0, ((5, -2.0),)))) == TokenLogprob(5, -2.0, ((5, -2.0),))


def test_text_cannot_become_markup() -> None:
    llm = drafting()
    bias = {byte_tokenizer().encode("<")[0]: 100.0}
    done = llm.generate("the hat", max_tokens=5, logit_bias=bias)[0]
    assert done.text == "<<<<<"
    assert done._repr_html_().count("&lt;") == 5
    assert "<<" not in done._repr_html_()


def test_a_stop_string_ends_the_shades_too() -> None:
    text = drafting().generate("the hat", max_tokens=24, ignore_eos=True)[0].text
    choice = drafting().generate("the hat", max_tokens=24, ignore_eos=True, stop=text[9:11])[0].choices[0]
    assert len(choice.text) < len(text)
    assert "".join(piece for piece, _ in choice.pieces()) == choice.text


def test_answers_are_values(done: Completion) -> None:
    """They go through pickle and copy, and into dicts, without the tokenizer that tells their shades."""
    again = pickle.loads(pickle.dumps(done))
    assert again == done == copy.deepcopy(done)
    assert len(pickle.dumps(done)) < 20_000
    assert asdict(done)["choices"][0]["from_draft"] == done.choices[0].from_draft
    assert again.choices[0].pieces() == [(done.text, False)]
    assert again._repr_html_()


def test_an_answer_that_failed_says_why() -> None:
    def broken(history: object, logits: object) -> None:
        raise KeyError("<no> such state")

    done = drafting("none").generate("the hat", max_tokens=5, processors=broken)[0]
    assert "error=" in repr(done.choices[0])
    assert "&lt;no&gt; such state" in done._repr_html_()
    assert isinstance(done.choices[0], Choice)
