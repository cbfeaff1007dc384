"""Logits to distribution, against a slow reading of the definitions; ties, errors, bounds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, NumericsError, RequestError
from outrider.sampling.distribution import surviving_ids
from outrider.sampling.noise import choice_words, gumbel_range
from outrider.sampling.params import SamplingParams, check_token_ids
from outrider.sampling.sampler import History, RequestSampler, RowToRank, perturbed_best

VOCABULARY = 12


def sampler(params: SamplingParams, committed: list[int] | None = None, prompt: int = 2, ends: tuple[int, ...] = (0,)):  # type: ignore[no-untyped-def]
    return RequestSampler(
        params,
        seed=77,
        choice=0,
        vocabulary=VOCABULARY,
        committed=committed if committed is not None else [3, 4],
        prompt_length=prompt,
        end_ids=ends,
    )


def naive_survivors(scaled: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The definitions, one after the other, over a full sort by (probability descending, id ascending)."""
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    best = max(scaled)
    weight = {i: math.exp(scaled[i] - best) if scaled[i] > -math.inf else 0.0 for i in order}
    kept = [i for i in order if weight[i] >= min_p * (1 - 1e-12) and weight[i] > 0]
    kept = kept[:top_k] if top_k else kept
    total, mass, nucleus = sum(weight[i] for i in kept), 0.0, []
    for i in kept:
        if mass / total >= top_p:
            break
        nucleus.append(i)
        mass += weight[i]
    return set(nucleus)


@given(
    st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.25, 1.0, 2.5, -math.inf]), min_size=1, max_size=12),
    st.sampled_from([0, 1, 2, 3, 50]),
    st.sampled_from([1.0, 0.95, 0.61, 0.3, 1e-6]),
    st.sampled_from([0.0, 0.05, 0.4, 1.0]),
)
def test_survivors_are_those_of_the_definition(scaled: list[float], top_k: int, top_p: float, min_p: float) -> None:
    if max(scaled) == -math.inf:
        return
    found = surviving_ids(torch.tensor(scaled), top_k=top_k, top_p=top_p, min_p=min_p).tolist()
    assert found == sorted(found)
    assert set(found) == naive_survivors(scaled, top_k, top_p, min_p)


def test_survivors_of_a_large_vocabulary() -> None:
    scaled = torch.randn(50_000, generator=torch.Generator().manual_seed(0)) * 3
    for options in ((0, 0.9, 0.0), (0, 0.999, 0.0), (40, 0.9, 0.0), (0, 1.0, 0.01), (0, 0.5, 0.001)):
        top_k, top_p, min_p = options
        found = set(surviving_ids(scaled, top_k=top_k, top_p=top_p, min_p=min_p).tolist())
        assert found == naive_survivors(scaled.tolist(), top_k, top_p, min_p), options


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0] + [0.0] * 8])
    assert sampler(SamplingParams()).choose(logits, [()]) == [1]
    assert surviving_ids(logits[0], top_k=2, top_p=1.0, min_p=0.0).tolist() == [1, 2]


def test_choice_is_argmax_of_logit_over_temperature_plus_gumbel() -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=0.7)
    chosen = sampler(params).choose(logits, [(), (5,), (5, 6)])
    for row, position, token in zip(logits, (2, 3, 4), chosen, strict=True):
        noise = gumbel_range(77, VOCABULARY, choice_words(position, 0), row.device)
        assert token == int((row / 0.7 + noise.float()).argmax())


def test_perturbed_best_begins_with_the_choice() -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(2))
    paths = [(), (5,), (5, 6), (5, 6, 7)]
    for params in (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=3)):
        one = sampler(params)
        best = one.perturbed_best(logits, paths, 5)
        assert [tokens[0] for tokens, _ in best] == one.choose(logits, paths)
        assert all(confidence == sorted(confidence, reverse=True) for _, confidence in best)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_perturbed_best_names_only_tokens_that_may_be_chosen(temperature: float) -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(6))
    one = sampler(SamplingParams(temperature=temperature, allowed_token_ids=(2, 7)))
    tokens, confidence = one.perturbed_best(logits, [()], 5)[0]
    assert sorted(tokens) == [2, 7]
    assert sum(confidence) == pytest.approx(1.0)


def requests(vocabulary: int) -> list[RequestSampler]:
    """Requests of many kinds, of which some are alike."""
    kinds = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.0, "top_p": 0.5}]
    kinds += [{"logit_bias": {2: 1.0}}, {"temperature": 1.0, "presence_penalty": 0.5}]
    return [
        RequestSampler(
            SamplingParams(**kind),
            seed=2**63 + turn,
            choice=turn % 3,
            vocabulary=vocabulary,
            committed=[3] * (1 + turn % 4),
            prompt_length=1,
            end_ids=(0,),
        )
        for turn, kind in enumerate(kinds * 3)
    ]


@pytest.mark.parametrize("vocabulary", [40, 64], ids=["padded", "whole"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_asked_together_is_asked_alone(vocabulary: int, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(7, 64, generator=torch.Generator().manual_seed(8))).to(dtype)
    asked = [
        RowToRank(one, (5 * turn) % 7, (1, 2)[: turn % 3], 1 + turn % 4)
        for turn, one in enumerate(requests(vocabulary))
    ]
    found = perturbed_best(logits, asked)
    assert [answer is None for answer in found] == [one.sampler.adjusts for one in asked]
    for (one, row, path, width), answer in zip(asked, found, strict=True):
        if answer is not None:
            assert [answer] == one.perturbed_best(logits[row : row + 1], [path], width)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_row_that_cannot_be_read_is_nobody_elses_fault(poison: float) -> None:
    """Those asked beside it are to be asked alone, and get their answers then."""
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(9))
    logits[1, 4] = poison
    greedy, warm = sampler(SamplingParams()), sampler(SamplingParams(temperature=1.0))
    found = perturbed_best(
        logits, [RowToRank(greedy, 0, (), 2), RowToRank(greedy, 1, (), 2), RowToRank(warm, 2, (), 2)]
    )
    assert found == [None, None, *warm.perturbed_best(logits[2:], [()], 2)]


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.5), SamplingParams(temperature=2.0, top_p=0.7, min_p=0.05)]
)
def test_probabilities_are_the_softmax_of_what_survives(params: SamplingParams) -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(3))
    found = sampler(params).probabilities(logits, [(), (1,)])
    for law, row in zip(found, logits, strict=True):
        scaled = (row / params.temperature).tolist()
        kept = naive_survivors(scaled, params.top_k, params.top_p, params.min_p)
        total = sum(math.exp(scaled[i]) for i in kept)
        expected = [math.exp(scaled[i]) / total if i in kept else 0.0 for i in range(VOCABULARY)]
        assert law.tolist() == pytest.approx(expected, abs=1e-6)
    greedy = sampler(SamplingParams()).probabilities(logits, [(), (1,)])
    assert greedy.sum(axis=1).tolist() == [1.0, 1.0]
    assert greedy.argmax(axis=1).tolist() == logits.argmax(dim=1).tolist()


def test_a_drafted_token_counts_like_a_committed_one() -> None:
    """A row's distribution with drafts on its path is the row's distribution once they are committed."""
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(4))
    params = SamplingParams(
        temperature=0.9,
        repetition_penalty=1.4,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        min_tokens=3,
        bad_words=((5, 6, 1), (2,)),
        logit_bias={7: 1.5},
        processors=(lambda history, row: row + 0.1 * history[-1] + 0.01 * len(history),),
    )
    for path in ([5], [5, 5], [5, 6], [1, 5, 6]):
        drafted = sampler(params, committed=[3, 4, 9], prompt=2)
        drafted.commit([9])
        committed = sampler(params, committed=[3, 4, 9, *path], prompt=2)
        committed.commit([9, *path])
        assert np.array_equal(drafted.probabilities(logits, [path]), committed.probabilities(logits, [()]))
        assert drafted.choose(logits, [path]) == committed.choose(logits, [()])


def test_penalties_are_those_of_the_definition() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0, 1.0] + [0.0] * 7])
    one = sampler(SamplingParams(temperature=1.0, repetition_penalty=2.0), committed=[0, 1])
    expected = torch.softmax(torch.tensor([1.0, -4.0, 1.0, 1.0, 1.0] + [0.0] * 7).double(), 0)
    assert np.allclose(one.probabilities(logits, [()])[0], expected)
    two = sampler(SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25), committed=[0, 1])
    expected = torch.softmax(torch.tensor([2.0, -2.0, 1.0 - 0.5 - 0.5, 0.25, 1.0] + [0.0] * 7).double(), 0)
    assert np.allclose(two.probabilities(logits, [(2, 3, 2)])[0], expected)


def test_raw_logits_are_never_changed() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(5))
    kept = logits.clone()
    params = SamplingParams(
        temperature=1.0, bad_words=((1,),), logit_bias={2: 3.0}, min_tokens=5, repetition_penalty=2.0
    )
    one = sampler(params)
    one.choose(logits, [(), (1,)])
    one.probabilities(logits, [(), (1,)])
    assert torch.equal(logits, kept)


def test_rows_that_are_not_numbers_are_refused() -> None:
    for bad in (math.nan, math.inf):
        logits = torch.zeros(1, VOCABULARY)
        logits[0, 3] = bad
        for params in (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(logit_bias={1: 1.0})):
            with pytest.raises(NumericsError, match="NaN"):
                sampler(params).choose(logits, [()])
            with pytest.raises(NumericsError, match="NaN"):
                sampler(params).probabilities(logits, [()])
    nothing = SamplingParams(allowed_token_ids=(3,), bad_words=((3,),))
    with pytest.raises(RequestError, match="every token is banned"):
        sampler(nothing).choose(torch.zeros(1, VOCABULARY), [()])


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=4))
def test_history_is_the_list_it_stands_for(committed: list[int], path: list[int]) -> None:
    view, whole = History(committed, path), committed + path
    assert list(view) == whole
    assert len(view) == len(whole)
    assert view[1:-1] == whole[1:-1]
    for i in range(-len(whole), len(whole)):
        assert view[i] == whole[i]


BAD = {
    "temperature": (-0.1, 1e-38, math.nan, math.inf, "hot", True),
    "top_k": (-2, 2.5, math.inf, "5"),
    "top_p": (0.0, 1.01, math.nan),
    "min_p": (-0.1, 1.5),
    "repetition_penalty": (0.0, -1.0),
    "presence_penalty": (math.inf,),
    "frequency_penalty": (math.nan,),
    "min_tokens": (-1,),
    "max_tokens": (-1, 1.5),
    "seed": (2**64, -(2**63) - 1, 0.5),
    "logprobs": (-1,),
    "prompt_logprobs": (-1,),
    "n": (0, -2),
    "stop": (("",), (1,), 5),
    "bad_words": (((),), ((-1,),), (1, 2), 7, "", " ", ("a", ""), (b"a",), ((1.5,),)),
    "allowed_token_ids": ((), (-1,), 3),
    "stop_token_ids": ((-5,), 1, ("a",)),
    "logit_bias": (
        *({-1: 0.0}, {1: math.nan}, {1: "much"}, {"a": 1.0}, {1.0: 0.5}, {1: True}, {"1": 0.0, 1: 1.0}),
        *([1, 2], 4, {1: 1e39}, {1: -1e39}, {1: math.inf}, {1: 10**400}),
    ),
    "processors": (3, (None,)),
    "ignore_eos": ("no", 1),
    "skip_special_tokens": (0,),
    "grammar": ("[0-9]+", {"type": "object"}),
    "speculate": ("always", 1),
    "algorithm": ("", 5),
    "max_draft_tokens": (-1, 1.5),
    "priority": (1.5, 2**31),
    "tenant": ("", 5),
    "prediction": (5, (-1,), ("a",), (1.5,)),
    "cache_salt": ("", 5, b"salt"),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_values_out_of_range_name_the_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        SamplingParams(**{field: value})


def test_every_bounded_field_is_covered_above() -> None:
    assert {item.name for item in dataclasses.fields(SamplingParams)} == set(BAD)


def test_minimum_above_maximum_and_unknown_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_tokens \(5\).*max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4)
    for params in (
        SamplingParams(logit_bias={99: 1.0}),
        SamplingParams(stop_token_ids=(99,)),
        SamplingParams(allowed_token_ids=(99,)),
        SamplingParams(bad_words=((1, 99),)),
    ):
        with pytest.raises(ConfigError, match=r"99.*12"):
            check_token_ids(params, VOCABULARY)
