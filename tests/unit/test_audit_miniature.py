"""Frequencies through the real sampler: exact laws, sound engines pass, faults on the way to a law are caught."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from contract.cases import by_id

from outrider import SamplingParams
from outrider.audit import miniature
from outrider.audit.faults import IN_FREQUENCIES, IN_LAWS, IN_SITUATIONS, Fault
from outrider.audit.frequencies import Here, check_frequencies, seek
from outrider.audit.miniature import LENGTH, PROMPT, SETTINGS, VOCABULARY, Miniature
from outrider.audit.parts import Parts
from outrider.audit.patched_requests import with_sampler
from outrider.audit.stages import FEWEST_MINIATURES, _self_draft
from outrider.audit.tie_rule import adjusted, survivors
from outrider.drafters.base import DrafterConfig
from outrider.sampling.sampler import Path, RequestSampler
from outrider.verify import make_verifier
from outrider.verify.rejection import Rejection

ALARM = 1e-8
CASES = [
    *((by_id(case), rule) for case in ("none", "ngram", "suffix-tree") for rule in ("coupled", "point-mass")),
    *((by_id("suffix"), rule) for rule in ("block", "recursive")),
    *((by_id("draft_model"), rule) for rule in ("coupled", "rejection", "block")),
    *((by_id("specinfer-tree"), rule) for rule in ("multi-step", "traversal")),
    (by_id("draft_model-tree"), "recursive"),
]


def sampler_law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The same law by the sampler itself, all drafted: every row's history is the prompt and a path."""
    target = miniature.recording().rows["target"]
    sampler = RequestSampler(
        params,
        seed=0,
        choice=0,
        vocabulary=VOCABULARY,
        committed=PROMPT,
        prompt_length=len(PROMPT),
        end_ids=params.stop_token_ids,
    )
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        grown: dict[tuple[int, ...], float] = {}
        for text, chance in texts.items():
            row = target[miniature._state(*(*PROMPT, *text)[-2:])]
            for token, p in enumerate(sampler.probabilities(row.unsqueeze(0), [text])[0].tolist()):
                if p:
                    grown[(*text, token)] = chance * p
        texts = grown
    return texts


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_the_law_from_the_definitions_is_the_samplers(setting: int) -> None:
    law, other = miniature.law(setting), sampler_law(SETTINGS[setting])
    assert math.isclose(sum(law.values()), 1.0, abs_tol=1e-9)
    assert law.keys() == other.keys()
    assert all(math.isclose(chance, other[text], rel_tol=1e-5) for text, chance in law.items())


@pytest.mark.parametrize(("config", "rule"), CASES, ids=lambda value: getattr(value, "method", value))
def test_sound_engines_pass(config: DrafterConfig, rule: str) -> None:
    source = Miniature(config, make_verifier(rule), 3)
    result = check_frequencies("miniature", source, FEWEST_MINIATURES, ALARM, Here())
    assert result.passed, result.detail


SHOWN_HERE_TOO = {
    "min_tokens ignored after drafts",
    "end inside accepted drafts missed",
    "q used for a greedy draft",
}
SIBLINGS = [fault for fault in (*IN_SITUATIONS, *IN_FREQUENCIES) if fault.name in SHOWN_HERE_TOO]
"""What ratio rules must not get wrong either; each shows here as well."""


@pytest.mark.parametrize("fault", [*IN_LAWS, *SIBLINGS], ids=lambda fault: fault.name)
def test_faults_on_the_way_to_a_law_are_caught_by_the_fewest_draws(fault: Fault) -> None:
    source = Miniature(_self_draft(1, 4), Rejection(), 5, fault.plant)
    found = seek(source, FEWEST_MINIATURES, ALARM, Here(), 1)
    assert found.caught, found.fit


class _LatePenalties(RequestSampler):
    """Knows the drafts on a row's path but for the penalties."""

    def _adjust(self, row: torch.Tensor, path: Path) -> torch.Tensor:
        if self._counts is None or not path:
            return super()._adjust(row, path)
        other = copy(self)
        other._counts = None
        return self._counts.penalise(RequestSampler._adjust(other, row, path), (), self.params)


def late_penalties(parts: Parts) -> Parts:
    return replace(parts, engine=with_sampler(_LatePenalties))


def test_penalties_alone_that_lag_behind_are_caught() -> None:
    """No impossible text gives them away: frequencies do."""
    found = seek(Miniature(_self_draft(1, 4), Rejection(), 5, late_penalties), 4000, ALARM, Here(), 13)
    assert found.caught, found.fit


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, logit_bias={3: 1.5, 4: -2.0}, repetition_penalty=1.4),
        SamplingParams(temperature=0.8, bad_words=((1, 2), (5,), (9, 9, 1)), frequency_penalty=0.5),
        SamplingParams(temperature=0.8, allowed_token_ids=(1, 2, 3, 9), presence_penalty=-0.5),
        SamplingParams(temperature=0.8, min_tokens=5, logit_bias={7: 3.0}),
        SamplingParams(temperature=0.8, min_tokens=3, processors=(lambda history, row: row.flip(0) * history[-1],)),
    ],
)
def test_what_comes_before_temperature_by_definition_is_the_samplers(params: SamplingParams) -> None:
    prompt, output = [4, 9, 1, 9], [9, 1, 1]
    row = torch.randn(16, generator=torch.Generator().manual_seed(2)) * 3
    for cut in range(len(output) + 1):
        sampler = RequestSampler(
            params,
            seed=1,
            choice=0,
            vocabulary=16,
            committed=[*prompt, *output[:cut]],
            prompt_length=len(prompt),
            end_ids=(7, 2),
        )
        sampler.commit(output[:cut])
        path = tuple(output[cut:])
        expected = sampler.probabilities(row.unsqueeze(0), [path])[0]
        scaled = adjusted(row, [*prompt, *output], len(prompt), params, (7, 2)) / params.temperature
        kept = survivors(scaled, params, score=0.0, mass=0.0)
        found = torch.softmax(scaled.double().masked_fill(~kept, -torch.inf), 0)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_text_that_goes_on_behind_its_end_is_none_that_can_be_drawn() -> None:
    setting = len(SETTINGS) - 1
    ended = next(text for text in miniature.law(setting) if text[-1] == miniature.END)
    going = next(text for text in miniature.law(setting) if text[-1] != miniature.END)

    def counted(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return miniature._counted(SimpleNamespace(output_ids=list(tokens), params=SETTINGS[setting]))  # type: ignore[arg-type]

    assert counted(ended) == ended
    assert counted((*going, 0)) == going
    assert counted((*ended, 0)) not in miniature.law(setting)
