"""The audit's check of a request's life: sound engines pass on few pages, each planted fault is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from byte_text import byte_tokenizer
from contract.cases import PROMPTS, by_id
from contract.cases import draft_models as models
from tiny import tiny_model, tiny_native
from wrapped import Jittery

from outrider.audit.faults import IN_SITUATIONS, Fault
from outrider.audit.parts import Parts
from outrider.audit.situations import CHOICES, Situations, reluctant
from outrider.models.base import TargetModel
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.stopping import FinishReason
from outrider.verify import make_verifier

TOKENS = 16


def parts(target: TargetModel, case: str = "ngram", tokenizer: Tokenizer | None = None) -> Parts:
    drafts = models()
    return Parts(target, tokenizer, lambda name: (drafts[name], None), by_id(case), make_verifier("coupled"))


def situations(engine: Parts, exact: bool = True) -> Situations:
    return Situations(engine, PROMPTS, tokens=TOKENS, seed=5, exact=exact)


TARGETS = {"hf": (tiny_model, False), "native": (tiny_native, True)}


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize("case", ["none", "ngram", "suffix-tree", "draft_model", "draft_model-tree"])
def test_sound_engines_pass(case: str, backend: str) -> None:
    make, exact = TARGETS[backend]
    engine = parts(make(0), case)
    found = situations(engine, exact)
    assert (own := found.check("own", engine)).passed, own.detail
    decoys = found.check("decoys", found.with_decoys(engine), must_meet=True)
    assert decoys.passed, decoys.detail
    assert not decoys.weak, decoys.detail


@pytest.mark.parametrize("fault", IN_SITUATIONS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("backend", TARGETS)
def test_each_fault_is_caught(fault: Fault, backend: str) -> None:
    make, exact = TARGETS[backend]
    found = situations(engine := parts(make(0)), exact)
    assert not found.check("decoys", fault.plant(found.with_decoys(engine))).passed


def test_every_situation_is_met() -> None:
    """With text too: letters end where tokens do, and stop strings end them."""
    tokenizer = byte_tokenizer()
    engine = parts(tiny_model(0, tokenizer.vocab_size), tokenizer=tokenizer)
    found = situations(engine)
    asked = [one.params for one in found._asked]
    assert {params.n for params in asked} == {1, CHOICES}
    for has in (
        lambda params: params.stop_token_ids,
        lambda params: params.stop,
        lambda params: params.min_tokens,
        lambda params: params.logit_bias,
        lambda params: params.processors,
        lambda params: params.temperature,
        lambda params: params.repetition_penalty != 1.0,
    ):
        assert 0 < sum(bool(has(params)) for params in asked) < len(asked)
    plain = found._plain.requests
    assert {request.finish_reason for request in plain} >= {FinishReason.STOP}
    assert any(isinstance(request.stop_reason, str) for request in plain), "no stop string was met"
    assert any(request.text for request in plain)
    decoys = found.check("decoys", found.with_decoys(engine), must_meet=True)
    assert decoys.passed, decoys.detail
    assert not decoys.weak


def test_a_check_that_met_nothing_is_weak() -> None:
    engine = parts(tiny_model(0), "none")
    found = situations(engine).check("plain", engine, must_meet=True)
    assert found.weak, "nothing was drafted, so no text ended inside accepted drafts"


def test_ties_may_fall_either_way_even_where_they_decide_the_end() -> None:
    def passes(jitter: float, exact: bool) -> tuple[bool, int]:
        found = situations(engine := parts(Jittery(jitter)), exact)  # type: ignore[arg-type]
        result = found.check("decoys", found.with_decoys(engine))
        return result.passed, result.flips

    passed, flips = passes(2e-6, exact=False)
    assert passed
    assert flips > 0
    assert not passes(2e-6, exact=True)[0]
    assert not passes(1e-1, exact=False)[0]


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: [*text, 3]], ids=["shorter", "longer"])
def test_an_end_at_another_token_is_seen_though_every_token_is_plain_decodings(
    change: Callable[[list[int]], list[int]],
) -> None:
    engine = parts(tiny_model(0))
    found = situations(engine)
    place, request = next(
        (place, one) for place, one in enumerate(found._plain.requests) if one.finish_reason is FinishReason.STOP
    )
    changed = [*found._plain.requests]
    other = replace(request, inputs=[*request.inputs[: request.prompt_length], *change(request.output_ids)])
    changed[place] = other
    assert found._end_complaint(place, found._plain.requests) == ""
    assert found._end_complaint(place, changed) != ""


def test_the_processor_is_a_pure_function_that_minds_the_last_token() -> None:
    row = torch.arange(6.0)
    first = reluctant([1, 2], row)
    assert row.tolist() == list(range(6))
    assert first.tolist() != reluctant([1, 3], row).tolist()
    assert first.tolist() != reluctant([1, 2, 2], row).tolist()
