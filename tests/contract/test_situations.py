"""Situations in which other engines' speculation went wrong, each re-created; text without drafts is the judge."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from byte_text import SIZE, byte_tokenizer
from oracles import Scripted, empty
from script_target import Script
from table_model import TableModel
from tiny import SIZES, seeded, tiny_model
from transformers import MistralConfig, MistralForCausalLM

from contract.cases import BACKENDS, PROMPTS, by_id, configs, is_exact, make
from contract.test_lossless import assert_clean
from outrider import LLM, CacheConfig, Choice, RequestError, SamplingParams, SchedulerConfig, Speculation
from outrider.drafters.base import DraftContext, DraftSequence, Needs
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import Ngram
from outrider.engine.guard import GuardedDrafter
from outrider.engine.picker import DrawingPicker
from outrider.errors import ConfigError, ModelError
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.models.hf.model import ATTENTION, HFModel
from outrider.options import drafter_option
from outrider.requests.stopping import FinishReason
from outrider.tree import SequenceRows, TokenTree, TreeBatch

END, STOP = sorted(byte_tokenizer().eos_ids)
GREEDY = SamplingParams(max_tokens=24)


def self_drafting(target: TargetModel, steps: int, **options: object) -> LLM:
    """The target drafts for itself: every draft is accepted."""
    config = DraftModel(model="self", num_steps=steps)
    return LLM.from_model(
        target,
        byte_tokenizer(),
        speculation=config,
        draft_models={"self": target},
        **options,  # type: ignore[arg-type]
    )


def plainly(target: TargetModel, **options: object) -> LLM:
    return LLM.from_model(target, byte_tokenizer(), speculation="none", **options)  # type: ignore[arg-type]


def scripted(answer: str | list[int], steps: int = 8) -> tuple[list[int], LLM, LLM]:
    """A prompt, and an LLM with and without drafts that answers it with a fixed text."""
    tokenizer = byte_tokenizer()
    prompt = tokenizer.encode("ha ha ha")
    ids = tokenizer.encode(answer) if isinstance(answer, str) else answer
    target = Script(prompt, ids)
    return prompt, self_drafting(target, steps), plainly(target)


def streamed(llm: LLM, prompt: list[int], params: SamplingParams) -> tuple[str, list[int], Choice]:
    text, ids, whole = "", [], None
    for chunk in llm.stream(prompt, params):
        text += chunk.text
        ids += chunk.token_ids
        whole = chunk.choice or whole
    assert whole is not None
    return text, ids, whole


def assert_one_end(llm: LLM, base: LLM, prompt: list[int], params: SamplingParams) -> Choice:
    """Text, ids, logprobs and reasons end at one token: streamed, at once, and as without drafts."""
    done, plain = llm.generate(prompt, params)[0].choices[0], base.generate(prompt, params)[0].choices[0]
    text, ids, whole = streamed(llm, prompt, params)
    for other in (plain, whole):
        assert (done.text, done.token_ids) == (other.text, other.token_ids)
        assert (done.finish_reason, done.stop_reason) == (other.finish_reason, other.stop_reason)
    assert (text, tuple(ids)) == (done.text, done.token_ids)
    if params.logprobs is not None:
        assert done.logprobs is not None
        assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    assert_clean(llm)
    return done


# ------------------------------------------------------------------------------------------------- stop strings


def test_stop_string_completes_inside_a_block() -> None:
    prompt, llm, base = scripted("ha ha ha ha ha and more text")
    params = SamplingParams(max_tokens=24, stop=(" ha ha ha",), logprobs=2)
    done = assert_one_end(llm, base, prompt, params)
    assert done.finish_reason is FinishReason.STOP
    assert done.stop_reason == " ha ha ha"
    assert done.text == "ha"
    assert byte_tokenizer().decode(done.token_ids) == "ha ha ha ha"


@pytest.mark.parametrize("stops", list(itertools.permutations(["a", "is", ","])))
@pytest.mark.parametrize("answer", ["this, that", "a thesis", "x,a", "haha is"])
def test_the_stop_that_completes_first_wins(answer: str, stops: tuple[str, ...]) -> None:
    prompt, llm, base = scripted(answer)
    done = assert_one_end(llm, base, prompt, SamplingParams(max_tokens=24, stop=stops))
    first = min(stops, key=lambda stop: answer.find(stop) + len(stop) if stop in answer else 999)
    assert done.stop_reason == first
    assert done.text == answer[: answer.find(first)]


def test_stop_strings_are_not_the_drafters_business() -> None:
    prompt = byte_tokenizer().encode("abab abab")
    target, draft = tiny_model(0, SIZE), tiny_model(1, SIZE)
    params = SamplingParams(max_tokens=64, stop=("ab",))
    for config in (DraftModel(model="draft"), Ngram(min_match=1)):
        llm = LLM.from_model(target, byte_tokenizer(), speculation=config, draft_models={"draft": draft})
        assert_one_end(llm, plainly(target), prompt, params)


def test_text_that_may_become_a_stop_is_held_back_until_it_cannot() -> None:
    prompt, llm, base = scripted("the hat, the end")
    params = SamplingParams(max_tokens=24, stop=("the end", "hats"))
    pieces = [chunk.text for chunk in llm.stream(prompt, params)]
    assert "".join(pieces) == "the hat, "
    assert_one_end(llm, base, prompt, params)


# -------------------------------------------------------------------------- end of sequence, lengths, usage


@pytest.mark.parametrize("end", [END, STOP])
@pytest.mark.parametrize("place", range(6))
def test_end_of_sequence_anywhere_in_a_block(place: int, end: int) -> None:
    word = byte_tokenizer().encode("xyz uvw")
    prompt, llm, base = scripted([*word[:place], end, *word])
    done = assert_one_end(llm, base, prompt, SamplingParams(max_tokens=24, logprobs=0))
    assert done.token_ids == (*word[:place], end)
    assert done.text == "xyz uvw"[:place]
    assert (done.finish_reason, done.stop_reason) == (FinishReason.STOP, None)


@pytest.mark.parametrize("own", [True, False])
def test_an_end_has_a_reason_only_where_the_request_named_its_id(own: bool) -> None:
    word = byte_tokenizer().encode("xyz")
    prompt, llm, base = scripted([*word, END])
    ids = (word[-1], END) if own else ()
    done = assert_one_end(llm, base, prompt, SamplingParams(max_tokens=24, stop_token_ids=ids))
    assert (done.finish_reason, done.stop_reason) == (FinishReason.STOP, word[-1] if own else None)


@pytest.mark.parametrize("most", range(1, 13))
def test_usage_never_exceeds_the_budget(most: int) -> None:
    target = tiny_model(0, SIZE)
    llm, prompt = self_drafting(target, 4), byte_tokenizer().encode("the hat")
    done = assert_one_end(llm, plainly(target), prompt, SamplingParams(max_tokens=most, logprobs=1, ignore_eos=True))
    assert len(done.token_ids) == most
    assert done.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("least", range(1, 11))
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_minimum_length_at_drafted_positions(least: int, steps: int) -> None:
    word = byte_tokenizer().encode("xyz")
    prompt, llm, base = scripted([*word, END, END, END, *word, END], steps)
    params = SamplingParams(max_tokens=24, min_tokens=least)
    done = assert_one_end(llm, base, prompt, params)
    assert len(done.token_ids) >= least
    assert not set(done.token_ids[: least - 1]) & {END, STOP}
    exact = assert_one_end(llm, base, prompt, dataclasses.replace(params, max_tokens=least))
    assert len(exact.token_ids) == least


def test_a_stop_before_the_minimum_length_does_not_count() -> None:
    prompt, llm, base = scripted("is it is so")
    params = SamplingParams(max_tokens=24, min_tokens=3, stop=("is",))
    assert assert_one_end(llm, base, prompt, params).text == "is it "


def test_no_draft_tokens_is_plain_decoding_and_nonsense_is_refused() -> None:
    target = tiny_model(0, SIZE)
    prompt = byte_tokenizer().encode("the hat")
    plain = plainly(target).generate(prompt, GREEDY)[0]
    for config in (DraftModel(model="self", num_steps=0), Ngram(num_draft_tokens=0)):
        llm = LLM.from_model(target, byte_tokenizer(), speculation=config, draft_models={"self": target})
        for _ in range(20):
            done = llm.generate(prompt, GREEDY)[0]
            assert done.token_ids == plain.token_ids
            assert done.speculation.acceptance_rate == 0.0
            assert done.speculation.mean_accepted_length == 1.0
    for nonsense in (-1, 100_000):
        with pytest.raises(ConfigError, match="num_steps"):
            DraftModel(model="self", num_steps=nonsense)
        with pytest.raises(ConfigError, match="num_draft_tokens"):
            Ngram(num_draft_tokens=nonsense)


# ------------------------------------------------------------------------------- penalties and token control


@pytest.mark.parametrize("field", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("strength", [1.0, 1.3])
@pytest.mark.parametrize("case", ["ngram", "draft_model", "suffix"])
def test_penalties_count_the_drafts_on_the_path(case: str, strength: float, field: str) -> None:
    target = tiny_model(0, SIZE)
    config = by_id(case, "good")
    prompt = byte_tokenizer().encode("ha ha ha ha ha ha")
    params = SamplingParams(max_tokens=24, **{field: strength})
    llm = LLM.from_model(target, byte_tokenizer(), speculation=config, draft_models={"good": target})
    assert llm.generate(prompt, params)[0].token_ids == plainly(target).generate(prompt, params)[0].token_ids


def test_a_banned_token_never_appears_at_a_drafted_position() -> None:
    target = tiny_model(0, SIZE)
    prompt = byte_tokenizer().encode("the hat")
    favourite = Counter(plainly(target).generate(prompt, GREEDY)[0].token_ids).most_common(1)[0][0]
    params = SamplingParams(max_tokens=24, logit_bias={favourite: -100.0})
    done = self_drafting(target, 4).generate(prompt, params)[0]
    assert favourite not in done.token_ids
    assert done.token_ids == plainly(target).generate(prompt, params)[0].token_ids


# ---------------------------------------------------------------------------------------- greedy and seeds


PHRASES = (
    "ha ",
    "the ",
    "is is ",
    "abc",
    "a, a, ",
    "x",
    "no ",
    "yes yes ",
    "1 2 3 ",
    "ab ",
    "\n",
    "()",
    "tick tock ",
    "la la la ",
    "0",
    "end.end.",
    "\t-",
    "foo bar ",
    "==",
    "aba",
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeated_phrases_stay_greedy(backend: str) -> None:
    target = BACKENDS[backend](0, SIZE)
    llm = LLM.from_model(target, byte_tokenizer(), speculation=Ngram(min_match=2, max_match=5, num_draft_tokens=4))
    prompts = [byte_tokenizer().encode(phrase * 8) for phrase in PHRASES]
    params = SamplingParams(max_tokens=128)
    plain = plainly(target).generate(prompts, params)
    drafted = llm.generate(prompts, params)
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(sum(c.speculation.accepted) for c in drafted) > 200


def test_a_seed_gives_the_same_text_alone_and_in_company() -> None:
    target = tiny_model(0, SIZE)
    llm, prompt = self_drafting(target, 4), byte_tokenizer().encode("the hat")
    seeded = SamplingParams(max_tokens=10, temperature=2.0, seed=42)
    others = [SamplingParams(max_tokens=17, temperature=1.0) for _ in range(4)]
    texts = [llm.generate(prompt, seeded)[0].token_ids for _ in range(3)]
    texts += [llm.generate([prompt] * 5, [*others[:k], seeded, *others[k:]])[k].token_ids for k in range(5)]
    texts.append(tuple(streamed(llm, prompt, seeded)[1]))
    texts.append(plainly(target).generate(prompt, seeded)[0].token_ids)
    assert len(set(texts)) == 1


# -------------------------------------------------------------------------------------------------- logprobs


@pytest.mark.parametrize("case", ["none", "ngram", "draft_model", "draft_model-tree"])
def test_logprobs_are_the_targets(case: str) -> None:
    target = tiny_model(0, SIZE)
    prompt = byte_tokenizer().encode("the hat, the hat")
    params = SamplingParams(max_tokens=32, temperature=1.0, seed=1, logprobs=5, ignore_eos=True)
    llm = LLM.from_model(
        target, byte_tokenizer(), speculation=by_id(case, "good"), draft_models={"good": tiny_model(1, SIZE)}
    )
    done = llm.generate(prompt, params)[0]
    with torch.inference_mode():
        from tiny import tiny_module

        ids = torch.tensor([[*prompt, *done.token_ids]])
        truth = torch.log_softmax(tiny_module(0, SIZE, "eager")(input_ids=ids).logits[0].float(), -1)
    assert done.choices[0].logprobs is not None
    for place, entry in enumerate(done.choices[0].logprobs):
        row = truth[len(prompt) - 1 + place]
        assert entry.token_id == done.token_ids[place]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert list(entry.top) == sorted(entry.top, key=lambda pair: -pair[1])
        assert [value for _, value in entry.top] == pytest.approx(row.topk(5).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("most", [0, 1, 16])
@pytest.mark.parametrize("chunk", [4, 512])
def test_prompt_logprobs_leave_generation_unharmed(most: int, chunk: int) -> None:
    target = tiny_model(0, SIZE)
    prompt = byte_tokenizer().encode("the hat, the hat")
    params = SamplingParams(max_tokens=most, prompt_logprobs=1)
    scheduler = SchedulerConfig(prefill_chunk=chunk)
    plain = plainly(target).generate(prompt, params)[0]
    llm = self_drafting(target, 4, scheduler=scheduler)
    done = llm.generate(prompt, params)[0]
    assert done.token_ids == plain.token_ids
    assert done.prompt_logprobs is not None
    assert plain.prompt_logprobs is not None
    assert len(done.prompt_logprobs) == len(prompt)
    assert done.prompt_logprobs[0] is None
    for mine, theirs, token in zip(done.prompt_logprobs[1:], plain.prompt_logprobs[1:], prompt[1:], strict=True):
        assert mine is not None
        assert theirs is not None
        assert mine.token_id == token
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    assert llm.generate(prompt, GREEDY)[0].token_ids == plainly(target).generate(prompt, GREEDY)[0].token_ids


# ------------------------------------------------------------------------------- context limits, vocabularies


@pytest.mark.parametrize("steps", [5, 32])
@pytest.mark.parametrize("most", [16, None])
def test_drafts_are_clipped_at_the_end_of_the_context(most: int | None, steps: int) -> None:
    target = tiny_model(0, SIZE)
    target.context_length = 256
    prompt = [int(token) for token in torch.randint(250, (240,), generator=torch.Generator().manual_seed(0))]
    params = SamplingParams(max_tokens=most, ignore_eos=True)
    expected = plainly(target).generate(prompt, params)[0]
    for llm in (
        self_drafting(target, steps),
        LLM.from_model(target, byte_tokenizer(), speculation=Ngram(num_draft_tokens=steps, min_match=1)),
    ):
        done = llm.generate(prompt, params)[0]
        assert done.token_ids == expected.token_ids
        assert len(done.token_ids) == 16
        assert done.finish_reason is FinishReason.LENGTH
    with pytest.raises(RequestError, match="256"):
        plainly(target).generate([1] * 256, params)


def test_past_the_draft_models_context_the_request_goes_on_plain() -> None:
    target, draft = tiny_model(0, SIZE), tiny_model(0, SIZE)
    draft.context_length = 30
    llm = LLM.from_model(target, byte_tokenizer(), speculation=DraftModel(model="short"), draft_models={"short": draft})
    prompt, params = byte_tokenizer().encode("the hat, the hat"), SamplingParams(max_tokens=40, ignore_eos=True)
    done = llm.generate(prompt, params)[0]
    assert done.token_ids == plainly(target).generate(prompt, params)[0].token_ids
    assert 1.0 < done.speculation.mean_accepted_length < 2.0


@pytest.mark.parametrize("steps", [1, 8, 64, 256])
@pytest.mark.parametrize("together", [1, 4])
def test_every_draft_length_up_to_the_documented_maximum(steps: int, together: int) -> None:
    target = tiny_model(0, SIZE)
    prompts = [byte_tokenizer().encode("the hat " * k) for k in range(1, together + 1)]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    expected = [c.token_ids for c in plainly(target).generate(prompts, params)]
    assert [c.token_ids for c in self_drafting(target, steps).generate(prompts, params)] == expected


def test_padded_vocabularies_work_and_other_ones_are_refused() -> None:
    prompt = byte_tokenizer().encode("the hat")
    for target_rows, draft_rows in ((SIZE, SIZE + 64), (SIZE + 64, SIZE), (SIZE + 64, SIZE + 64)):
        target, draft = tiny_model(0, target_rows), tiny_model(1, draft_rows)
        for params in (GREEDY, SamplingParams(max_tokens=24, temperature=2.0, seed=1)):
            llm = LLM.from_model(target, byte_tokenizer(), speculation=DraftModel(model="d"), draft_models={"d": draft})
            done = llm.generate(prompt, params)[0]
            assert done.token_ids == plainly(target).generate(prompt, params)[0].token_ids
            assert max(done.token_ids) < SIZE, "an id past the real vocabulary was chosen"
    with pytest.raises(ConfigError, match=rf"{SIZE - 8}.*{SIZE}"):
        LLM.from_model(
            tiny_model(0, SIZE),
            byte_tokenizer(),
            speculation=DraftModel(model="d"),
            draft_models={"d": tiny_model(1, SIZE - 8)},
        )


# ------------------------------------------------------------------------------------ caches and drafter state


@pytest.mark.parametrize("config", [DraftModel(model="d", num_steps=4), DraftModel(model="d", num_steps=4, topk=2)])
def test_a_sliding_window_forgets_rejected_drafts(config: DraftModel) -> None:
    """300 tokens through a window of 64, nearly every draft rejected: the text is transformers' own, far past it."""
    prompt = PROMPTS[-1]
    own = windowed(64, "eager").generate(torch.tensor([prompt]), max_new_tokens=300, do_sample=False, pad_token_id=0)
    target = HFModel(windowed(64, ATTENTION), architecture="MistralForCausalLM", context_length=512)
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    plain = LLM.from_model(target, speculation="none").generate(prompt, params)[0]
    assert list(plain.token_ids) == own[0, len(prompt) :].tolist()
    llm = LLM.from_model(target, speculation=config, draft_models={"d": tiny_model(1)})
    done = llm.generate(prompt, params)[0]
    assert done.token_ids == plain.token_ids
    assert sum(done.speculation.drafted) > 100
    assert done.speculation.acceptance_rate < 0.5
    assert_clean(llm)


def windowed(window: int, attention: str) -> MistralForCausalLM:
    """A tiny model that sees so many rows back."""
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = MistralConfig(**SIZES, **ends, sliding_window=window, attn_implementation=attention)
    return seeded(MistralForCausalLM, config, seed=5)


def test_a_drafter_that_reads_layers_the_target_has_not_is_refused_at_once() -> None:
    """Two blocks are layers 0 and 1, and 2 is the rows after the final norm."""
    for layers, refused in (((0, 1, 2), False), ((2, 3), True), ((-1,), True)):
        config = Scripted(empty, needs=Needs(deterministic=True, hidden_layers=layers))
        if refused:
            with pytest.raises(ModelError, match=rf"layer {layers[-1]} .* 0 to 2"):
                LLM.from_model(tiny_model(), speculation=config)
        else:
            LLM.from_model(tiny_model(), speculation=config).generate([[1, 2, 3]], GREEDY)


def test_a_model_without_blocks_shows_its_logits_as_hidden_rows() -> None:
    model = TableModel.random(5, seed=0)
    cache = KVPool(16, 4).cache("model")
    cache.extend("a", 4)
    batch = TreeBatch.pack([SequenceRows("a", 0, (1, 2, 3, 4), None, all_logits=True)])
    output = model.forward(batch, cache, (model.layers,))
    final = output.hidden[model.layers]
    assert final.shape == (4, model.width)
    assert torch.equal(model.unembed(final), output.logits)
    assert torch.equal(model.embed(batch.tokens), torch.eye(5)[batch.tokens])
    assert torch.equal(final @ model.unembed_rows(torch.arange(5)).T, output.logits)


def test_drafter_pages_are_bounded_by_the_pool() -> None:
    target = tiny_model(0, SIZE)
    llm = self_drafting(target, 4, cache=CacheConfig(rows=128, page_size=4))
    prompts = [byte_tokenizer().encode("the hat") for _ in range(8)]
    done = llm.generate(prompts, SamplingParams(max_tokens=30, ignore_eos=True))
    assert len({c.token_ids for c in done}) == 1
    sizes = {name: cache.slots for name, cache in llm.engine.pool._caches.items()}
    assert set(sizes.values()) == {128}, "every model's cache is bounded by the pool"


def test_one_requests_text_is_never_drafted_for_another() -> None:
    target = tiny_model(0, SIZE)
    tokenizer = byte_tokenizer()
    long, other = tokenizer.encode("the hat is the hat " * 8), tokenizer.encode("xyz, xyz, xyz")
    for name in ("ngram", "suffix"):
        used = LLM.from_model(target, tokenizer, speculation=name)
        used.generate(long, GREEDY)
        fresh = LLM.from_model(target, tokenizer, speculation=name)
        assert used.generate(other, GREEDY)[0].speculation == fresh.generate(other, GREEDY)[0].speculation


def test_drafting_and_plain_sequences_share_a_batch() -> None:
    target = tiny_model(0, SIZE)
    tokenizer = byte_tokenizer()
    prompts = [tokenizer.encode(text) for text in ("ha ha ha ha", "qwzx", "the the the", "7&k!")]
    llm = LLM.from_model(target, tokenizer, speculation=Ngram(min_match=1))
    alone = [plainly(target).generate(prompt, GREEDY)[0].token_ids for prompt in prompts]
    assert [c.token_ids for c in llm.generate(prompts, GREEDY)] == alone


# --------------------------------------------------------------------------------------------------- metrics


def test_acceptance_is_counted_over_tested_drafts() -> None:
    """Drafts of 4 of which 2, 0, 4 and 1 are right, one draft of 2 of which none is, and two rounds without."""
    word = byte_tokenizer().encode("abcdefghijklmnopqrstuvwxyz")
    prompt = byte_tokenizer().encode("ha ha ha")
    target = Script(prompt, word)
    plan = {1: (4, 2), 4: (4, 0), 5: (4, 4), 10: (4, 1), 12: (2, 0)}

    def script(sequence: DraftSequence) -> TokenTree:
        done = len(sequence.tokens) - len(prompt)
        drafted, right = plan.get(done, (0, 0))
        guess = [word[done + i] if i < right else 0 for i in range(drafted)]
        return sequence.builder().chain(guess).build()

    llm = LLM.from_model(target, byte_tokenizer(), speculation=Scripted(script, most_nodes=5))
    stats = llm.generate(prompt, SamplingParams(max_tokens=15, ignore_eos=True))[0].speculation
    assert stats.rounds == 7
    assert stats.drafted == [5, 5, 4, 4]
    assert stats.tested == [5, 3, 2, 1]
    assert stats.accepted == [3, 2, 1, 1]
    assert stats.acceptance_by_position == pytest.approx([3 / 5, 2 / 3, 1 / 2, 1.0])
    assert stats.acceptance_rate == pytest.approx(7 / 11)
    assert stats.mean_accepted_length == pytest.approx(1 + 7 / 7)


# ------------------------------------------------------------------------------------------ text and streaming


@pytest.mark.parametrize("steps", range(1, 9))
def test_characters_of_several_tokens_are_never_shown_broken(steps: int) -> None:
    answer = "🎉🔥🚀 naïve 東京 සිංහල"
    prompt, llm, base = scripted(answer, steps)
    params = SamplingParams(max_tokens=len(byte_tokenizer().encode(answer)))
    for chunk in llm.stream(prompt, params):
        assert "\N{REPLACEMENT CHARACTER}" not in chunk.text
    assert assert_one_end(llm, base, prompt, params).text == answer


# ----------------------------------------------------------------------------------- the sampling distribution


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.3),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, min_p=0.3),
    ],
)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_drafted_positions_use_the_requests_own_distribution(rule: str, params: SamplingParams) -> None:
    """Where truncation leaves few tokens, no other may ever appear; odds of a false alarm: none."""
    target = TableModel.random(8, seed=3)
    draft = target.near(4, 1.0)
    llm = LLM.from_model(
        target,
        speculation=Speculation(DraftModel(model="d", num_steps=3), verifier=rule),
        draft_models={"d": draft},
    )
    wishes = [dataclasses.replace(params, max_tokens=3, seed=seed) for seed in range(300)]
    for done in llm.generate([[1, 2]] * 300, wishes):
        before, last = 1, 2
        for token in done.token_ids:
            logits = target.table[before, last] / params.temperature
            share = torch.softmax(logits, 0)
            if params.top_k:
                assert token in logits.topk(params.top_k).indices
            assert share[token] >= params.min_p * share.max() * 0.999
            before, last = last, token


# --------------------------------------------------------------------------------------------- processors


@pytest.mark.parametrize("wrong", [None, [1.0, 2.0], torch.zeros(3)])
def test_a_processor_that_returns_no_logits_is_named(wrong: object) -> None:
    def odd(history, logits):  # type: ignore[no-untyped-def]
        return wrong

    llm = plainly(tiny_model(0, SIZE))
    prompts = [byte_tokenizer().encode("the hat")] * 2
    fine, failed = llm.generate(prompts, [GREEDY, dataclasses.replace(GREEDY, processors=(odd,))])
    assert fine.finish_reason is not FinishReason.ERROR
    assert "odd must return logits" in (failed.choices[0].error or "")


def test_a_processor_that_fails_ends_its_own_request_alone() -> None:
    target = tiny_model(0, SIZE)

    def broken(history, logits):  # type: ignore[no-untyped-def]
        if len(history) > 20:
            raise KeyError("no such state")
        return logits

    prompts = [byte_tokenizer().encode("the hat")] * 2
    wishes = [GREEDY, dataclasses.replace(GREEDY, processors=(broken,))]
    fine, failed = self_drafting(target, 4).generate(prompts, wishes)
    assert fine.token_ids == plainly(target).generate(prompts[0], GREEDY)[0].token_ids
    assert failed.finish_reason is FinishReason.ERROR
    assert "broken" in (failed.choices[0].error or "")


# ---------------------------------------------------------------------------------------------------- memory


def test_keys_and_values_are_bounded_reported_and_refused_when_they_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.kv import memory

    target, draft = tiny_model(0, SIZE), tiny_model(1, SIZE)
    models = {"draft_models": {"good": draft}, "speculation": by_id("draft_model", "good")}
    llm = LLM.from_model(target, byte_tokenizer(), cache=CacheConfig(rows=64), **models)  # type: ignore[arg-type]
    assert llm.cache_bytes == {"the target": 64 * target.row_bytes, "good": 64 * draft.row_bytes}
    llm.generate([[5, 6, 7]] * 8, SamplingParams(max_tokens=6))  # eight at once need no more
    held = {
        name: sum(store.keys.nbytes + store.values.nbytes for store in cache.layers.values())
        for name, cache in llm.engine.pool._caches.items()
    }
    assert sorted(held.values()) == sorted(llm.cache_bytes.values())

    monkeypatch.setattr(memory, "free_bytes", lambda device: 100 * target.row_bytes)
    with pytest.raises(ConfigError, match=r"64 rows take .* for the target, .* for good, but .* is free"):
        LLM.from_model(target, byte_tokenizer(), cache=CacheConfig(rows=64), **models)  # type: ignore[arg-type]
    assert plainly(target).engine.pool.rows == 64, "an automatic cache takes what half the free memory holds"


@pytest.mark.faulty_drafter
@pytest.mark.parametrize("case", [case for case, _ in configs("good")])
def test_what_was_drawn_before_a_drafter_failed_is_tested(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether drafting goes on may depend on what was drawn: to drop it would favour what keeps a drafter going."""
    rule = next(rule for rule in ("rejection", "multi-step") if is_exact(by_id(case), rule))
    llm = make(by_id(case), verifier=rule)
    pick, propose = DrawingPicker.pick, GuardedDrafter.propose
    calls: list[int] = []
    nodes: list[int] = []

    def picking(self: DrawingPicker, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return pick(self, *arguments, **options)

    def proposing(self: GuardedDrafter, context: DraftContext) -> list[TokenTree]:
        calls.clear()
        trees = propose(self, context)
        nodes.extend(len(tree) for tree in trees if len(calls) > 1)
        return trees

    monkeypatch.setattr(DrawingPicker, "pick", picking)
    monkeypatch.setattr(GuardedDrafter, "propose", proposing)
    done = llm.generate(PROMPTS[0], SamplingParams(max_tokens=12, temperature=1.0, seed=3))[0]
    assert len(done.token_ids) == 12
    draws = drafter_option(by_id(case)) is not None
    assert len(nodes) == draws, "it was to fail once, in its second draw"
    assert all(count > 1 for count in nodes), "what had been drawn was dropped because the next draw failed"
    assert_clean(llm)
