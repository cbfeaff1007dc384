"""Situations in which other servers' speculation went wrong, over HTTP; the answer without drafts is the judge."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import httpx
import jsonschema
import pytest
from asked import BASE, ROUTES, body, everywhere, streamed, together, whole
from byte_text import SIZE, byte_tokenizer
from oracles import Scripted
from script_target import Script
from serving import Served, serving
from tiny import tiny_model
from tiny_heads import tiny_head

from outrider import LLM, CacheConfig, SchedulerConfig
from outrider.drafters.base import DraftSequence
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.eagle3 import Eagle3
from outrider.drafters.ngram import Ngram
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.tree import TokenTree

PROMPT = "ha ha ha"
END, STOP = sorted(byte_tokenizer().eos_ids)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
both_routes = pytest.mark.parametrize("route", list(ROUTES))


@lru_cache
def talker() -> Tokenizer:
    """The byte tokenizer with a template that adds nothing, so that a prompt is as long on both routes."""
    plain = byte_tokenizer()
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return Tokenizer(plain.backend, name="bytes", eos_ids=plain.eos_ids, chat_template=template)


def self_drafting(target: TargetModel, steps: int = 8, **options: Any) -> LLM:
    """The target drafts for itself: every draft is accepted."""
    config = DraftModel(model="self", num_steps=steps)
    return LLM.from_model(target, talker(), speculation=config, draft_models={"self": target}, **options)


def looking_up(target: TargetModel, steps: int = 5, **options: Any) -> LLM:
    """Drafts are found in the text so far."""
    config = Ngram(num_draft_tokens=steps, min_match=1)
    return LLM.from_model(target, talker(), speculation=config, **options)


@pytest.fixture
def ask() -> Iterator[Any]:
    """Serves a model for the rest of a test, and gives a client of it; at the end nothing may be left open."""
    with ExitStack() as stack:
        running: list[Served] = []

        def start(llm: LLM, **settings: Any) -> httpx.Client:
            served = stack.enter_context(serving(stack.enter_context(llm), **settings))
            running.append(served)
            return stack.enter_context(served.client())

        yield start
        assert all(one.idle() for one in running)


def answering(answer: str | list[int], steps: int = 8, prompt: str = PROMPT) -> LLM:
    """Answers the prompt with a fixed text, drafted by itself."""
    ids = talker().encode(answer) if isinstance(answer, str) else answer
    return self_drafting(Script(talker().encode(prompt), ids), steps)


# ------------------------------------------------------------------------------------------------- stop strings


@both_routes
def test_a_stop_string_completes_inside_a_block(ask: Any, route: str) -> None:
    """Text, tokens, logprobs and usage must end at one token, not at the end of the accepted block."""
    client = ask(answering("ha ha ha ha ha and more text", steps=5))
    said = everywhere(client, body(route, PROMPT, max_tokens=24, stop=[" ha ha ha"], logprobs=2))
    (output,) = said.outputs
    assert output.text == "ha"
    assert output.reasons == ("stop", " ha ha ha")
    assert "".join(output.tokens) == "ha ha ha ha"
    assert said.usage["completion_tokens"] == len(output.tokens)


@both_routes
def test_several_stop_strings_in_one_block(ask: Any, route: str) -> None:
    """The stop that completes first in the text counts, whatever its place in the list."""
    for answer in ("this, that", "x,a"):
        client = ask(answering(answer))
        for stops in itertools.permutations(["a", "is", ","]):
            said = everywhere(client, body(route, PROMPT, max_tokens=24, stop=list(stops)))
            first = min(stops, key=lambda stop: answer.find(stop) + len(stop) if stop in answer else 999)
            assert said.texts == [answer[: answer.find(first)]]
            assert said.outputs[0].reasons == ("stop", first)


# -------------------------------------------------------------------------- end of sequence, lengths, usage


@pytest.mark.parametrize("end", [END, STOP])
def test_the_end_of_sequence_anywhere_in_a_block(ask: Any, end: int) -> None:
    """An end token that is accepted with tokens behind it ends the text, whichever of the end tokens it is."""
    word = talker().encode("xyz uvw")
    for place, route in zip(range(0, 6, 2), itertools.cycle(ROUTES), strict=False):
        client = ask(answering([*word[:place], end, *word]))
        said = everywhere(client, body(route, PROMPT, max_tokens=24, logprobs=0), drafts=place > 0)
        assert said.texts == ["xyz uvw"[:place]]
        assert said.outputs[0].reasons == ("stop", None)
        assert said.usage["completion_tokens"] == place + 1 == len(said.outputs[0].tokens)


def test_tokens_sent_logprobs_and_usage_agree_at_every_length(ask: Any) -> None:
    """A block that is longer than what is left of the budget must not be counted whole."""
    client = ask(self_drafting(tiny_model(0, SIZE), 4))
    for most, route in zip(range(1, 13), itertools.cycle(ROUTES), strict=False):
        wish = body(route, "the hat", max_tokens=most, logprobs=1, ignore_eos=True)
        said = everywhere(client, wish, drafts=most > 2)
        assert said.usage["completion_tokens"] == most == len(said.outputs[0].tokens)
        assert said.outputs[0].reasons[0] == "length"


def test_the_minimum_length_holds_at_drafted_positions(ask: Any) -> None:
    """The end is impossible before the minimum and possible from there on, however far the drafts reach."""
    word = talker().encode("xyz")
    client = ask(answering([*word, END, END, END, *word, END]))
    for least, reach in itertools.product((1, 3, 4, 5, 8), (1, 3, 8)):
        wish = body("completions", PROMPT, max_tokens=24, min_tokens=least, logprobs=0)
        said = everywhere(client, wish | {"speculation": {"max_draft_tokens": reach}})
        assert said.usage["completion_tokens"] >= least
        exact = whole(client, wish | {"max_tokens": least})
        assert exact.usage["completion_tokens"] == least
    client = ask(answering("is it is so"))
    assert everywhere(client, body("chat", PROMPT, max_tokens=24, min_tokens=3, stop=["is"])).texts == ["is it "]


def test_no_draft_tokens_means_plain_decoding(ask: Any) -> None:
    """Zero draft tokens, of the server or of a request, are plain decoding with clean figures; nonsense is refused."""
    target = tiny_model(0, SIZE)
    wish = body("completions", "the hat", max_tokens=8)
    client = ask(self_drafting(target, 0))
    other = ask(self_drafting(target, 4))
    expected = whole(other, wish | BASE)
    off = {"speculation": {"max_draft_tokens": 0}}
    for said in [*together(client, [wish] * 20), *together(other, [wish | off] * 20)]:
        said.assert_equals(expected)
        counts = said.usage["speculation"]
        assert (counts["drafted"], counts["acceptance_rate"], counts["accepted_length"]) == (0, 0.0, 1.0)
    for reach in (1, 1000):
        whole(other, wish | {"speculation": {"max_draft_tokens": reach}}).assert_equals(expected)
    for nonsense in (-1, 100_000, "many", 1.5):
        told = other.post(ROUTES["completions"], json=wish | {"speculation": {"max_draft_tokens": nonsense}})
        assert told.status_code == 400
        assert told.json()["error"]["param"] == "speculation"
        assert "max_draft_tokens" in told.json()["error"]["message"]


# ------------------------------------------------------------------------------- penalties and token control


@pytest.mark.parametrize("make", [self_drafting, looking_up])
def test_penalties_and_bans_count_at_drafted_positions(ask: Any, make: Any) -> None:
    """A penalty, a bias or a minimum probability is never dropped because a token was drafted."""
    client = ask(make(tiny_model(0, SIZE), 4))
    loop = body("completions", "la la la la la la", max_tokens=24, ignore_eos=True)
    free = everywhere(client, loop | {"logprobs": 1})
    token = talker().encode(free.outputs[0].tokens[0])[0]
    changed = 0
    for field in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        said = everywhere(client, loop | {field: 1.3}, drafts=False)
        changed += said.texts != free.texts
    assert changed >= 2, "these penalties were to change the text"
    banned = everywhere(client, loop | {"logprobs": 1, "logit_bias": {str(token): -100}}, drafts=False)
    assert free.outputs[0].tokens[0] not in banned.outputs[0].tokens
    for seed in range(2):
        everywhere(client, loop | {"temperature": 1.0, "min_p": 0.3, "seed": seed, "n": 3}, drafts=False)


# ---------------------------------------------------------------------------------------- seeds and logprobs


def test_a_seed_gives_one_answer_alone_and_in_company(ask: Any) -> None:
    """The same seeded request answers alike, whoever else is served and however it is asked."""
    client = ask(self_drafting(tiny_model(0, SIZE), 4))
    seeded = body("chat", "the hat", seed=42, temperature=2.0, max_tokens=10, ignore_eos=True)
    expected = everywhere(client, seeded)
    other = body("completions", "a hat", temperature=1.0, max_tokens=17)
    for place in range(4):
        company = [other] * 4
        company.insert(place, seeded)
        together(client, company)[place].assert_equals(expected)
    assert len({whole(client, seeded | {"seed": seed}).texts[0] for seed in range(5)}) > 1


@pytest.mark.parametrize("make", [self_drafting, looking_up])
@both_routes
def test_logprobs_of_accepted_tokens_are_the_models(ask: Any, make: Any, route: str) -> None:
    """An accepted token was not certain: its logprob is the target's, and the list of the best holds it."""
    client = ask(make(tiny_model(0, SIZE), 4))
    wish = body(route, "the hat, the hat", temperature=1.0, seed=1, max_tokens=64, logprobs=5, ignore_eos=True)
    (output,) = everywhere(client, wish).outputs
    assert len(output.logprobs) == 64
    assert all(found is not None and found < -1e-6 for found in output.logprobs)
    for token, found, top in zip(output.tokens, output.logprobs, output.top, strict=True):
        ranked = [value for _, value in top[:5]]
        assert ranked == sorted(ranked, reverse=True)
        assert sum(map(math.exp, ranked)) < 1 + 1e-6
        if route == "completions":
            assert dict(top)[token] == found


def test_logprobs_of_the_prompt_leave_generation_unharmed(ask: Any) -> None:
    """Asking for the prompt's logprobs changes neither the text behind it nor the next request's."""
    client = ask(self_drafting(tiny_model(0, SIZE), 4))
    plain = body("completions", "the hat, the hat", max_tokens=16)
    expected = everywhere(client, plain)
    for most in (0, 1, 16):
        said = everywhere(client, plain | {"max_tokens": most, "echo": True, "logprobs": 1}, drafts=most > 2)
        (output,) = said.outputs
        assert output.logprobs[0] is None
        assert all(found is not None and found < 0 for found in output.logprobs[1:])
        assert len(output.tokens) == said.usage["total_tokens"]
        assert output.text.startswith("the hat, the hat")
        whole(client, plain).assert_equals(expected)


# ----------------------------------------------------------------------------------------- grammars and tools


COLOURS = {
    "type": "object",
    "properties": {
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
        "bright": {"type": "boolean"},
    },
    "required": ["colours", "bright"],
    "additionalProperties": False,
}


BLANKS = {str(talker().encode(blank)[0]): -100 for blank in " \n\t\r"}
"""A bias against the blanks that JSON allows between its parts: a random model likes nothing better."""


def asking_json(route: str, **options: Any) -> dict[str, Any]:
    """A request whose prompt is prose and whose answer must follow the schema."""
    told = {"type": "json_schema", "json_schema": {"name": "colours", "schema": COLOURS, "strict": True}}
    return body(
        route, "the hat is red, the hat is green", max_tokens=300, response_format=told, logit_bias=BLANKS, **options
    )


def drafting_badly(target: TargetModel) -> LLM:
    """Nearly every draft is rejected, and the grammar forbids many."""
    config = DraftModel(model="bad", num_steps=4)
    return LLM.from_model(target, talker(), speculation=config, draft_models={"bad": tiny_model(1, SIZE)})


@pytest.mark.parametrize("make", [drafting_badly, looking_up])
def test_forbidden_drafts_harm_no_grammar(ask: Any, make: Any) -> None:
    """A draft that the grammar forbids is rejected: thirty answers at once are whole, valid and as without drafts."""
    client = ask(make(tiny_model(0, SIZE)))
    for route in ROUTES:
        said = everywhere(client, asking_json(route), drafts=False)
        jsonschema.validate(json.loads(said.texts[0]), COLOURS)
        assert said.outputs[0].reasons[0] == "stop"
    wishes = [asking_json("chat", temperature=1.0, seed=seed) for seed in range(30)]
    found = together(client, wishes)
    for said, wish in zip(found, wishes, strict=True):
        jsonschema.validate(json.loads(said.texts[0]), COLOURS)
        if wish["seed"] < 3:
            said.assert_equals(whole(client, wish | BASE))
    assert len({said.texts[0] for said in found}) > 3
    told = {"type": "json_object"}
    said = everywhere(client, body("chat", "the hat", max_tokens=20, response_format=told), drafts=False)
    assert said.texts[0].lstrip().startswith("{")


def test_a_long_structured_answer_is_not_cut(ask: Any) -> None:
    """Drafts that are found in the prompt neither shorten a structured answer nor change it."""
    names = ["ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal"]
    schema = {"type": "array", "items": {"enum": names}, "minItems": 12, "maxItems": 12}
    text = " ".join(f'"{name}", "{other}",' for name, other in itertools.permutations(names[:5], 2))
    told = {"type": "json_schema", "json_schema": {"name": "names", "schema": schema}}
    client = ask(looking_up(tiny_model(0, SIZE)))
    said = everywhere(client, body("chat", text, max_tokens=300, response_format=told, logit_bias=BLANKS))
    jsonschema.validate(json.loads(said.texts[0]), schema)
    assert said.usage["speculation"]["accepted"] > 0
    assert said.usage["completion_tokens"] > 40


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("depth", "tide")
]
CALLS = [
    {"name": "depth", "arguments": '{"sea": "north 東京", "unit": "m"}'},
    {"name": "tide", "arguments": '{"day": 3, "of": {"a": [1, 2]}}'},
]


def test_calls_that_end_and_begin_in_one_block(ask: Any) -> None:
    """Where a block of accepted tokens ends one call and begins the next, no argument is lost or doubled."""
    written = [
        f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}\n</tool_call>' for call in CALLS
    ]
    client = ask(answering([*talker().encode("well: " + "\n".join(written)), END], steps=8))
    for reach in (1, 2, 3, 5, 8):
        wish = body("chat", PROMPT, max_tokens=300, tools=TOOLS, speculation={"max_draft_tokens": reach})
        (output,) = everywhere(client, wish).outputs
        assert output.calls == CALLS
        assert output.text.strip() == "well:"
        assert output.reasons[0] == "tool_calls"
        assert whole(client, wish | {"return_pieces": True}).outputs[0].calls == CALLS
    one = everywhere(client, wish | {"parallel_tool_calls": False})
    assert one.outputs[0].calls == CALLS[:1]


# ------------------------------------------------------------------------- context, memory and vocabularies


@pytest.mark.parametrize("reach", [5, 32])
def test_drafts_end_with_the_context(ask: Any, reach: int) -> None:
    """Near the end of the context drafts are cut to what is left, and the text reaches the last position."""
    target = tiny_model(0, SIZE)
    target.context_length = 256
    prompt = [token % 250 for token in range(7, 247)]
    for make in (self_drafting, looking_up):
        client = ask(make(target, reach))
        wish = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "temperature": 0, "logprobs": 0}
        said = everywhere(client, wish, drafts=False)
        assert said.usage["total_tokens"] == 256
        assert said.outputs[0].reasons[0] == "length"
        text = "x" * 240
        unset = everywhere(client, body("chat", text, ignore_eos=True), drafts=False)
        assert unset.usage["total_tokens"] == 256
        assert unset.outputs[0].reasons[0] == "length"
        told = client.post(ROUTES["completions"], json={"prompt": [*prompt, *prompt[:16]]})
        assert told.status_code == 400
        assert told.json()["error"]["code"] == "context_length_exceeded"


def test_many_requests_share_a_small_bounded_cache(ask: Any) -> None:
    """Target and drafter stay within the pages that were set aside, however many requests come at once."""
    llm = self_drafting(tiny_model(0, SIZE), 4, cache=CacheConfig(rows=128, page_size=4))
    client = ask(llm)
    wish = body("chat", "the hat", max_tokens=30, ignore_eos=True, logprobs=0)
    expected = everywhere(client, wish)
    for said in together(client, [wish] * 12):
        said.assert_equals(expected)
    assert set(llm.cache_bytes) == {"the target", "self"}
    assert client.get("/stats").json()["kv_use"] <= 1.0
    told = client.post(ROUTES["completions"], json=body("completions", "x" * 128))
    assert told.status_code == 400, "a prompt that can never fit is refused at once"


def test_padded_vocabularies_are_never_seen(ask: Any) -> None:
    """Rows past the real vocabulary, of either model, are neither drafted nor chosen nor listed."""
    for target_rows, draft_rows in ((SIZE, SIZE + 64), (SIZE + 64, SIZE), (SIZE + 64, SIZE + 64)):
        target, draft = tiny_model(0, target_rows), tiny_model(1, draft_rows)
        llm = LLM.from_model(target, talker(), speculation=DraftModel(model="d"), draft_models={"d": draft})
        client = ask(llm)
        for options in ({}, {"temperature": 2.0, "seed": 1, "n": 2}):
            said = everywhere(client, body("completions", "the hat", max_tokens=12, logprobs=20, **options))
            assert said.usage["completion_tokens"] == sum(len(one.tokens) for one in said.outputs)
    padded = client.post(
        ROUTES["completions"], json=body("completions", "the hat", allowed_token_ids=[SIZE + 3], max_tokens=2)
    )
    assert padded.status_code == 400


# --------------------------------------------------------------------------------- caches and drafter state


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_cached_prefix_does_not_hide_the_drafters_rows(ask: Any, method: str) -> None:
    """A follow-up turn that finds its prefix cached is answered, and as a fresh server answers it."""
    options: dict[str, Any] = {"cache": CacheConfig(page_size=4, prefix_cache=True)}

    def make() -> LLM:
        target = tiny_model(0, SIZE)
        if method == "draft_model":
            return self_drafting(target, 4, **options)
        heads = {"tiny": tiny_head("eagle3", target)}
        config = Eagle3(head="tiny")
        return LLM.from_model(target, talker(), speculation=config, heads=heads, **options)

    warm = ask(make())
    first = [{"role": "system", "content": "you are a hat " * 4}, {"role": "user", "content": "the hat?"}]
    wish = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answer = whole(warm, {"messages": first, **wish}).texts[0]
    second = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "and now?"}]
    other = [first[0], {"role": "user", "content": "another"}]
    for messages in (second, other):
        said = everywhere(warm, {"messages": messages, **wish})
        assert said.usage["prompt_tokens_details"]["cached_tokens"] > 0
        cold = ask(make())
        said.assert_equals(whole(cold, {"messages": messages, **wish}))


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_no_request_is_drafted_from_anothers_text(ask: Any, method: str) -> None:
    """What the server drafts for a request, and how well, does not depend on who was served before."""
    target = tiny_model(0, SIZE)
    used, fresh = (ask(LLM.from_model(target, talker(), speculation=method)) for _ in range(2))
    whole(used, body("completions", "the hat is the hat " * 8, max_tokens=32))
    other = body("completions", "xyz, xyz, xyz", max_tokens=32, ignore_eos=True)
    mine, theirs = whole(used, other), whole(fresh, other)
    mine.assert_equals(theirs)
    assert mine.usage["speculation"] == theirs.usage["speculation"]
    assert mine.usage["speculation"]["drafted"] > 0


# ------------------------------------------------------------------------- concurrency, leaving, preemption


def test_a_client_that_leaves_harms_no_later_answer(ask: Any) -> None:
    """A stream is closed after any number of tokens, and the same prompt is asked for again."""
    client = ask(self_drafting(tiny_model(0, SIZE), 4, cache=CacheConfig(page_size=4, prefix_cache=True)))
    wish = body("chat", "the hat, the hat", max_tokens=40, ignore_eos=True, logprobs=0)
    expected = everywhere(client, wish)
    for leaves in range(1, 9):
        with client.stream("POST", ROUTES["chat"], json=wish | {"stream": True}) as answer:
            for _ in zip(range(leaves), answer.iter_lines(), strict=False):
                pass
        streamed(client, wish).assert_equals(expected)


def test_drafting_and_plain_requests_share_rounds(ask: Any) -> None:
    """Requests with drafts and without, joining and leaving, are each answered as alone."""
    client = ask(looking_up(tiny_model(0, SIZE)))
    prompts = ["ha ha ha ha", "qwzx", "the the the", "7&k!", "abab abab", "q", "la la la la", "%"]
    wishes = [body("chat", text, max_tokens=8 + 5 * place, logprobs=0) for place, text in enumerate(prompts)]
    wishes[2] |= BASE
    alone = [whole(client, wish) for wish in wishes]
    for said, expected in zip(together(client, wishes), alone, strict=True):
        said.assert_equals(expected)


def test_prompts_in_chunks_beside_running_drafts(ask: Any) -> None:
    """Prompts just below, at and above the chunk's size are read while others decode with drafts."""
    client = ask(self_drafting(tiny_model(0, SIZE), 5, scheduler=SchedulerConfig(prefill_chunk=64)))
    sizes = (63, 8, 64, 9, 65, 10, 128, 11, 400)
    wishes = [
        {"prompt": [(7 * place + size) % 250 for place in range(size)], "max_tokens": 30, "temperature": 0}
        for size in sizes
    ]
    alone = [whole(client, wish | BASE) for wish in wishes]
    for said, expected in zip(together(client, wishes), alone, strict=True):
        said.assert_equals(expected)


# --------------------------------------------------------------------------------------------------- metrics


def test_acceptance_is_counted_over_tested_drafts(ask: Any) -> None:
    """Usage, statistics and metrics say by hand what a drafter did that is right 2, 0, 4, 1 and 0 times."""
    word = talker().encode("abcdefghijklmnopqrstuvwxyz")
    prompt = talker().encode(PROMPT)
    plan = {1: (4, 2), 4: (4, 0), 5: (4, 4), 10: (4, 1), 12: (2, 0)}

    def script(sequence: DraftSequence) -> TokenTree:
        done = len(sequence.tokens) - len(prompt)
        drafted, right = plan.get(done, (0, 0))
        guess = [word[done + i] if i < right else 0 for i in range(drafted)]
        return sequence.builder().chain(guess).build()

    llm = LLM.from_model(Script(prompt, word), talker(), speculation=Scripted(script, most_nodes=5))
    client = ask(llm)
    said = whole(client, body("completions", PROMPT, max_tokens=15, ignore_eos=True))
    assert said.usage["completion_tokens"] == 15
    counts = said.usage["speculation"]
    assert (counts["rounds"], counts["drafted"], counts["tested"], counts["accepted"]) == (7, 18, 11, 7)
    assert counts["acceptance_rate"] == pytest.approx(7 / 11, abs=1e-4)
    assert counts["accepted_length"] == 2.0
    stats = client.get("/stats").json()
    assert stats["tested"][:4] == [5, 3, 2, 1]
    assert stats["accepted"][:4] == [3, 2, 1, 1]
    assert stats["drafted"] == 18
    assert stats["tokens"] == 15


# ------------------------------------------------------------------------------------------ text and streaming


@both_routes
def test_characters_of_several_tokens_are_never_shown_broken(ask: Any, route: str) -> None:
    """A character whose bytes lie in two blocks is held back until it is whole."""
    answer = "🎉🔥🚀 naïve 東京 සිංහල"
    client = ask(answering(answer))
    most = len(talker().encode(answer))
    for reach in range(1, 9):
        wish = body(route, PROMPT, max_tokens=most, speculation={"max_draft_tokens": reach})
        said = everywhere(client, wish)
        assert said.texts == [answer]
        assert not any(REPLACEMENT in piece for piece in said.outputs[0].pieces)
