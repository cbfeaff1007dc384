"""Structured output: always of its grammar, and token for token what plain decoding gives under the same grammar."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import jsonschema
import pytest
from byte_text import SIZE, byte_tokenizer
from oracles import Scripted
from tiny import tiny_model

from contract.cases import by_id, exact_pairs, heads_of, on_disk
from contract.test_broken_rounds import STAGES, Broken, breaking
from contract.test_situations import END, Script, plainly
from outrider import LLM, CacheConfig, Grammar, SamplingParams, SchedulerConfig, Speculation
from outrider.drafters.base import DrafterConfig, DraftSequence, Needs
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import Ngram
from outrider.errors import ConfigError
from outrider.requests.stopping import FinishReason
from outrider.tree import TokenTree
from outrider.verify import make_verifier

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "hat": {"enum": ["red", "green", None]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "hat", "sizes"],
    "additionalProperties": False,
}
JSON = Grammar.json_schema(SCHEMA, any_whitespace=False)
GREEDY = SamplingParams(max_tokens=120, grammar=JSON)
SEEDED = replace(GREEDY, temperature=1.0, seed=11)
PROMPTS = [byte_tokenizer().encode(text) for text in ("the hat is a hat", '{"name": "ha", "hat": "red"}', "ha")]
PAIRS = [(case, rule) for case, rule in exact_pairs() if not on_disk(case)]


def llm_of(config: DrafterConfig | Scripted | str, rule: str = "coupled", **options: object) -> LLM:
    target = tiny_model(0, SIZE)
    return LLM.from_model(
        target,
        byte_tokenizer(),
        speculation=Speculation(config, verifier=rule),  # type: ignore[arg-type]
        draft_models={"good": tiny_model(0, SIZE), "bad": tiny_model(1, SIZE)},
        heads={} if isinstance(config, (str, Scripted)) else heads_of(config, target),
        **options,  # type: ignore[arg-type]
    )


def plain(params: SamplingParams) -> list[tuple[int, ...]]:
    """The tokens of every prompt without drafts of any kind."""
    done = plainly(tiny_model(0, SIZE)).generate(PROMPTS, replace(params, speculate=False))
    assert not any(sum(c.speculation.drafted) + c.speculation.forced for c in done)
    return [c.token_ids for c in done]


@pytest.mark.parametrize(("case", "rule"), PAIRS)
def test_every_drafter_and_rule_writes_what_the_schema_accepts(case: str, rule: str) -> None:
    repeats = make_verifier(rule).draws.target_alone
    llm = llm_of(by_id(case), rule)
    for params in (GREEDY, SEEDED):
        done = llm.generate(PROMPTS, params)
        assert [c.finish_reason for c in done] == [FinishReason.STOP] * 3, [c.choices[0].error for c in done]
        for c in done:
            jsonschema.validate(json.loads(c.text), SCHEMA)
        if repeats or params is GREEDY:
            assert [c.token_ids for c in done] == plain(params)
        assert sum(c.speculation.forced for c in done) > 0


@pytest.mark.parametrize("rows", [1, 2, 5, 17])
@pytest.mark.parametrize("case", ["none", "ngram", "suffix-tree", "draft_model-tree"])
def test_the_text_is_the_same_at_every_budget(case: str, rows: int) -> None:
    for cache in (CacheConfig(), CacheConfig(rows=192, page_size=4)):
        llm = llm_of(by_id(case, "bad"), scheduler=SchedulerConfig(max_rows=rows), cache=cache)
        assert [c.token_ids for c in llm.generate(PROMPTS, SEEDED)] == plain(SEEDED)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("config", [DraftModel(model="bad"), Ngram(min_match=1, num_draft_tokens=4)])
def test_thirty_requests_with_a_bad_drafter_get_json(config: DrafterConfig, temperature: float) -> None:
    prompts = [byte_tokenizer().encode(f"the hat of number {n} is a hat, the hat is the hat") for n in range(30)]
    wishes = [replace(GREEDY, temperature=temperature, seed=n) for n in range(30)]
    done = llm_of(config).generate(prompts, wishes)
    assert [c.finish_reason for c in done] == [FinishReason.STOP] * 30, [c.choices[0].error for c in done]
    for c in done:
        jsonschema.validate(json.loads(c.text), SCHEMA)
    base = plainly(tiny_model(0, SIZE)).generate(prompts, [replace(wish, speculate=False) for wish in wishes])
    assert [c.token_ids for c in done] == [c.token_ids for c in base]


def test_a_long_array_is_extracted_whole() -> None:
    names = [f"Anna {a}{b}" for a in "ABCDE" for b in "FGHIJ"]
    answer = json.dumps({"names": names})
    prompt = byte_tokenizer().encode(f"Find the names in this document. (They said: {json.dumps(names)}.) " * 2)
    target = Script(prompt, [*byte_tokenizer().encode(answer), END], context_length=4096)
    schema = {"type": "object", "properties": {"names": {"type": "array", "items": {"type": "string"}}}}
    params = SamplingParams(max_tokens=600, grammar=Grammar.json_schema(schema))
    done = LLM.from_model(target, byte_tokenizer(), speculation=Ngram(num_draft_tokens=5)).generate(prompt, params)[0]
    assert json.loads(done.text) == {"names": names}
    assert done.finish_reason is FinishReason.STOP
    assert done.speculation.mean_accepted_length > 3.0


def test_forced_tokens_save_rounds_and_count_apart() -> None:
    done = llm_of("none").generate(PROMPTS[0], GREEDY)[0]
    stats = done.speculation
    assert stats.forced > len('"name": "hat": "sizes": ') // 2
    assert stats.rounds + stats.forced == stats.emitted
    assert (stats.drafted, stats.tested, stats.accepted, stats.levels) == ([], [], [], 0)
    assert sum(done.choices[0].from_draft) == stats.forced


def test_a_request_without_speculation_has_no_forced_drafts() -> None:
    done = llm_of(by_id("ngram")).generate(PROMPTS[0], replace(GREEDY, speculate=False))[0]
    assert done.speculation.rounds == done.speculation.emitted
    assert done.speculation.forced == 0


def forbidden(sequence: DraftSequence) -> TokenTree:
    """A tree of four drafts that no JSON begins or goes on with, and one more below each."""
    builder = sequence.builder()
    for token in (END, *byte_tokenizer().encode("\x01\x02")):
        if len(builder) < sequence.nodes - 1 and sequence.depth > 1:
            builder.add(builder.add(0, token), token)
    return builder.build()


@pytest.mark.parametrize("rule", ["coupled", "multi-step"])
def test_forbidden_drafts_cost_no_row(rule: str) -> None:
    llm = llm_of(Scripted(forbidden, needs=Needs(deterministic=True, branching=True)), rule)
    rows = []
    llm.engine.observers.append(_Rows(rows))
    done = llm.generate(PROMPTS[:1], GREEDY)
    assert [c.token_ids for c in done] == plain(GREEDY)[:1]
    assert sum(done[0].speculation.drafted) == 0
    assert sum(rows) <= done[0].speculation.emitted + 1  # those that the grammar forced, and none of the drafter's


class _Rows:
    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def observe(self, turns, stats) -> None:  # type: ignore[no-untyped-def]
        self._rows.append(stats.rows.total - stats.rows.prompt)


@pytest.mark.parametrize("case", ["none", "draft_model"])
@pytest.mark.parametrize(
    ("change", "ending"),
    [({}, END), ({"ignore_eos": True}, None), ({"allowed_token_ids": tuple(range(SIZE - 2))}, None)],
)
def test_a_whole_output_ends(case: str, change: dict[str, object], ending: int | None) -> None:
    """With an end token where one is allowed; else at once, and as a stop all the same."""
    params = replace(GREEDY, grammar=Grammar.choice(["ha ha", "the"]), logit_bias={END: 50.0}, min_tokens=90, **change)  # type: ignore[arg-type]
    done = llm_of(by_id(case)).generate(PROMPTS, params)
    assert {c.finish_reason for c in done} == {FinishReason.STOP}, [c.choices[0].error for c in done]
    assert {c.text for c in done} <= {"ha ha", "the"}
    assert {c.token_ids[-1] == ending for c in done} == {ending is not None}
    assert [c.token_ids for c in done] == plain(params)


def test_a_text_that_may_go_on_ends_only_after_its_minimum() -> None:
    params = replace(GREEDY, grammar=Grammar.regex("h{1,40}"), logit_bias={END: 50.0})
    assert len(llm_of("none").generate(PROMPTS[0], params)[0].text) == 1
    assert len(llm_of("none").generate(PROMPTS[0], replace(params, min_tokens=7))[0].text) == 7
    assert len(llm_of("none").generate(PROMPTS[0], replace(params, min_tokens=90))[0].text) == 40


def test_a_stop_string_cuts_a_grammar_short() -> None:
    params = replace(GREEDY, stop=('"hat"',))
    done = llm_of("none").generate(PROMPTS, params)
    assert {c.choices[0].stop_reason for c in done} == {'"hat"'}
    assert [c.token_ids for c in done] == plain(params)


def test_a_grammar_that_dies_ends_its_own_request() -> None:
    """Another one, beside it in every round, goes on."""
    dying = Grammar.regex("((h{1,100}){1,100}){1,100}")  # more expressions than a step may make
    wishes = [replace(GREEDY, grammar=dying, ignore_eos=True, logit_bias={END: -50.0}), GREEDY]
    for case in ("none", "draft_model"):
        done = llm_of(by_id(case)).generate(PROMPTS[:1] * 2, wishes)
        assert done[0].finish_reason is FinishReason.ERROR
        assert "too complex" in (done[0].choices[0].error or "")
        assert done[1].token_ids == plain(GREEDY)[0]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_broken_round_and_a_preemption_change_nothing(stage: str, late: bool) -> None:
    llm = llm_of(by_id("draft_model", "bad"), cache=CacheConfig(rows=192, page_size=4))
    where, name = STAGES[stage](llm)
    params, raised = replace(SEEDED, grammar=llm.compile_grammar(JSON)), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, breaking(getattr(where, name), 4, raised, late=late))
        requests = [llm.engine.submit(prompt, params) for prompt in PROMPTS]
        while not llm.engine.idle:
            with suppress(Broken):
                llm.engine.step()
    assert raised
    assert [tuple(request.output_ids) for request in requests] == plain(SEEDED)


def test_an_engine_does_not_compile() -> None:
    with pytest.raises(ConfigError, match="compile_grammar"):
        llm_of("none").engine.submit(PROMPTS[0], GREEDY)


def test_a_model_without_a_tokenizer_has_no_grammars() -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        LLM.from_model(tiny_model(0), speculation="none").generate([1, 2], grammar=JSON)
