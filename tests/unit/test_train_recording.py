"""Hidden rows kept while answers are decoded: those that a pass over the finished text gives, whatever came between."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny import VOCABULARY, tiny_model, tiny_native
from wrapped import Wrapped

from outrider.config import CacheConfig, SchedulerConfig
from outrider.drafters import methods
from outrider.drafters.base import Committed
from outrider.engine.scheduler import Scheduler
from outrider.errors import NumericsError
from outrider.kernels.native import cpu
from outrider.llm import LLM
from outrider.models.base import TargetModel
from outrider.sampling.params import SamplingParams
from outrider.train.data.example import Example
from outrider.train.features.capture import capture_each
from outrider.train.features.recording import Recorder, Recording

LAYERS = (0, 2)
PROMPTS = [[7, 1, 4, 1, 5, 9, 2, 6] * 3 + [number] for number in range(5)]


def recorded(target: TargetModel, cache: CacheConfig, scheduler: SchedulerConfig) -> tuple[Recorder, list[Example]]:
    recorder = Recorder(LAYERS)
    llm = LLM.from_model(target, speculation=Recording(recorder), cache=cache, scheduler=scheduler)
    found = llm.generate(PROMPTS, SamplingParams(max_tokens=12, temperature=0.9, seed=3, ignore_eos=True))
    return recorder, [
        Example([*prompt, *one.token_ids], len(prompt)) for prompt, one in zip(PROMPTS, found, strict=True)
    ]


def check(target: TargetModel, recorder: Recorder, examples: list[Example]) -> None:
    for example, features in capture_each(target, examples, LAYERS):
        text = recorder.take(example)
        assert text is not None
        assert text.tokens.tolist() == example.tokens
        assert text.answer_start == example.answer_start
        for layer in LAYERS:
            got, expected = text.features[layer], features[layer].half()
            assert got.dtype == torch.float16
            torch.testing.assert_close(got[:-1], expected[:-1], atol=1e-2, rtol=1e-2)
            if target.row_invariant:
                assert torch.equal(got[:-1], expected[:-1])
            assert not got[-1].any()
        assert recorder.take(example) is None  # handed out once


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(tiny_model, id="hf"),
        pytest.param(tiny_native, id="native", marks=pytest.mark.skipif(cpu is None, reason="no kernels were built")),
    ],
)
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_rows_are_those_of_a_pass_over_the_text(make: object, prefix_cache: bool) -> None:
    target: TargetModel = make()  # type: ignore[operator]
    check(target, *recorded(target, CacheConfig(page_size=4, prefix_cache=prefix_cache), SchedulerConfig()))


def test_texts_that_lost_their_pages_are_recorded_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    target, lost, preempt = tiny_model(), [], Scheduler.preempt
    monkeypatch.setattr(
        Scheduler, "preempt", lambda self, request: (lost.append(request.id), preempt(self, request))[1]
    )
    cache = CacheConfig(rows=60, page_size=4, prefix_cache=False)  # too few for two texts of 37 tokens
    check(target, *recorded(target, cache, SchedulerConfig()))
    assert lost


def test_a_row_that_is_no_number_costs_its_own_text_alone() -> None:
    class Broken(Wrapped):
        """The fourth prompt ends in a token whose row is no number."""

        def forward(self, batch, cache, layers=()):  # type: ignore[no-untyped-def]
            output = self.target.forward(batch, cache, layers)
            rows = output.hidden[0].clone()
            rows[batch.tokens == PROMPTS[3][-1]] = torch.nan
            return output._replace(hidden={**output.hidden, 0: rows})

    target = Broken(tiny_model())
    recorder, examples = recorded(target, CacheConfig(), SchedulerConfig())
    clean = [PROMPTS[3][-1] not in example.tokens[:-1] for example in examples]
    assert 0 < sum(clean) < len(clean)
    for example, sound in zip(examples, clean, strict=True):
        if sound:
            assert recorder.take(example) is not None
        else:
            with pytest.raises(NumericsError, match=f"the text {example.key}: .* rows of layer 0 contain NaN"):
                recorder.take(example)
    assert not recorder._ended


def test_a_text_that_was_cut_off_is_not_kept() -> None:
    recorder, rows = Recorder(LAYERS), {layer: torch.ones(3, 4) for layer in LAYERS}
    for key, tokens in (("whole", [1, 2, 3, 4]), ("cut", [1, 2, 3, 4, 5, 6])):
        kept = Committed(key, tokens, 0, range(3))
        recorder.observe(SimpleNamespace(output=SimpleNamespace(hidden=rows), committed=[kept]))  # type: ignore[arg-type]
        recorder.close(key)
    assert list(recorder._ended) == [(1, 2, 3, 4)]


def test_a_text_that_was_not_seen_is_not_made_up() -> None:
    recorder, examples = recorded(tiny_model(), CacheConfig(), SchedulerConfig())
    stranger = Example([VOCABULARY - 1, *examples[0].tokens], 2)
    assert recorder.take(stranger) is None


def test_nobody_chooses_recording_by_name() -> None:
    assert Recording.method not in methods()
