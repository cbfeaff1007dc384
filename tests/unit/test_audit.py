"""The audit: clean engines pass, each planted fault is caught, and its judges agree with the definitions."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace

import pytest
import torch
from contract.cases import PROMPTS, by_id
from scipy import stats
from tiny import VOCABULARY, tiny_model, tiny_native
from wrapped import Jittery

from outrider import SamplingParams
from outrider.audit import Effort, Parts, audit, audit_prompts
from outrider.audit.chi_square import Fit, chi_square, detectable, needed, tail
from outrider.audit.equality import (
    GREEDY,
    PENALTIES,
    SAMPLED,
    check_texts,
    decode_plainly,
    related_texts,
    with_decoys,
)
from outrider.audit.faults import IN_FREQUENCIES, IN_LAWS, IN_PREFIXES, IN_SITUATIONS, IN_TEXTS
from outrider.audit.frequencies import ITSELF, TARGET, Here, Redraw, check_frequencies, seek
from outrider.audit.parts import PAGE
from outrider.audit.report import CheckResult, Proof
from outrider.audit.stages import FALSE_ALARM, FrequencyStages, TextStages
from outrider.audit.tie_rule import penalised, rounding, survivors
from outrider.drafters.draft_model import DraftModel
from outrider.errors import ConfigError
from outrider.sampling.sampler import RequestSampler
from outrider.verify import Verdict, make_verifier
from outrider.verify.coupled import Coupled
from outrider.verify.rejection import Rejection

ALARM = 1e-8


def load(name: str):  # type: ignore[no-untyped-def]
    return tiny_model({"good": 0, "bad": 1}[name]), None


def parts(case: str = "ngram", verifier: str = "coupled", model: str = "good") -> Parts:
    return Parts(tiny_model(0), None, load, by_id(case, model), make_verifier(verifier))


def stages(engine: Parts, draws: int = 3200) -> FrequencyStages:
    models = {"good": tiny_model(0), "bad": tiny_model(1)}
    return FrequencyStages(engine, PROMPTS, Effort(draws=draws), models, Here())


@pytest.mark.parametrize("setting", [GREEDY, PENALTIES, *SAMPLED], ids=lambda setting: setting.name)
@pytest.mark.parametrize("case", ["ngram", "draft_model-tree", "lookup_model"])
def test_texts_of_a_clean_engine_pass(case: str, setting) -> None:  # type: ignore[no-untyped-def]
    engine = parts(case)
    batch = decode_plainly(engine, setting, PROMPTS, tokens=12, seed=3)
    for arm in (engine, with_decoys(engine, batch)):
        result = check_texts("texts", engine, arm, batch, exact=True)
        assert result.passed, result.detail
        assert "prompt tokens reused" not in result.detail


@pytest.mark.parametrize("rule", ["coupled", "point-mass", "block", "traversal"])
def test_texts_are_compared_under_every_rule(rule: str) -> None:
    """Plain text is the text of the dice that can be repeated, whatever dice the audited rule throws."""
    engine = replace(parts("draft_model", rule), target=tiny_native(0), load=lambda name: (tiny_native(0), None))
    for stage in TextStages(engine, [], PROMPTS, Effort(tokens=12, scope="texts")).stages():
        result = stage.run()
        if isinstance(result, CheckResult):
            assert (result.passed, result.weak) == (True, False), (stage.name, result.detail)
            same, every = re.match(r"(\d+) of (\d+) texts identical", result.detail).groups()  # type: ignore[union-attr]
            assert same == every, (stage.name, result.detail)


def test_a_text_that_is_not_plain_decodings_fails_though_each_token_could_be() -> None:
    engine = replace(parts(), target=tiny_native(0))
    batch = decode_plainly(engine, SAMPLED[0], PROMPTS, tokens=12, seed=3)
    other = decode_plainly(engine, SAMPLED[0], PROMPTS, tokens=12, seed=9)
    assert check_texts("texts", engine, engine, batch, exact=True).passed
    assert not check_texts("texts", engine, engine, replace(batch, plain=other.plain), exact=True).passed


@pytest.mark.parametrize("setting", [GREEDY, SAMPLED[1]], ids=lambda setting: setting.name)
def test_ties_may_fall_either_way_and_are_counted(setting) -> None:  # type: ignore[no-untyped-def]
    def run(jitter: float, exact: bool) -> CheckResult:
        engine = replace(parts(), target=Jittery(jitter))
        batch = decode_plainly(engine, setting, PROMPTS, tokens=24, seed=2)
        return check_texts("texts", engine, with_decoys(engine, batch), batch, exact=exact)

    tied = run(2e-6, exact=False)
    assert tied.passed, tied.detail
    if setting is GREEDY:  # noise breaks ties, so sampled texts hardly flip
        assert tied.flips > 0
        assert not run(2e-6, exact=True).passed
    assert not run(1e-1, exact=False).passed


@pytest.mark.parametrize("fault", IN_TEXTS, ids=lambda fault: fault.name)
def test_faults_of_the_bookkeeping_show_in_texts(fault) -> None:  # type: ignore[no-untyped-def]
    engine = parts()
    results = []
    for setting in (GREEDY, PENALTIES):
        batch = decode_plainly(engine, setting, PROMPTS, tokens=24, seed=0)
        results.append(check_texts("texts", engine, fault.plant(with_decoys(engine, batch)), batch, exact=False))
    assert not all(result.passed for result in results)


@pytest.mark.parametrize("model", [tiny_model, tiny_native])
@pytest.mark.parametrize("case", ["none", "draft_model", "lookup_model", "lookup_model-head", "lookup_model-block"])
def test_prompts_that_begin_alike_and_the_faults_that_show_there(case: str, model) -> None:  # type: ignore[no-untyped-def]
    engine = replace(parts(case), target=model(0))
    texts = related_texts(PROMPTS, 100)
    batch = decode_plainly(engine, GREEDY, texts, tokens=12, seed=0)
    assert not any(request.cached_tokens for request in batch.plain), "the judge took over rows itself"
    shared = replace(engine, prefix_cache=True)
    clean = check_texts("texts", engine, shared, batch, exact=model(0).row_invariant)
    assert clean.passed, clean.detail
    assert "prompt tokens reused" in clean.detail
    for fault in IN_PREFIXES:
        assert not check_texts("texts", engine, fault.plant(shared), batch, exact=False).passed
    alone = replace(batch, prompts=batch.prompts[:1], params=batch.params[:1], plain=batch.plain[:1])
    assert check_texts("texts", engine, shared, alone, exact=False).weak, "nothing was taken over"
    assert not clean.weak


@pytest.mark.parametrize("prompts", [PROMPTS, [[5]], [[0, 0], [1]], [[1, 2]]])
@pytest.mark.parametrize("most", [20, 100])
def test_related_prompts_part_at_one_token_or_everywhere_but_where_a_page_begins(
    prompts: list[list[int]], most: int
) -> None:
    texts = related_texts(prompts, most)
    first, half = texts[0], len(texts) // 2
    assert texts[:half] == texts[half:]
    assert half >= 3
    assert all(len(text) == len(first) <= most for text in texts)
    differing = [[place for place in range(len(first)) if text[place] != first[place]] for text in texts[1:half]]
    assert all(len(places) == 1 for places in differing[:-1])
    assert differing[-1] == [place for place in range(len(first)) if place % PAGE]


def planted(fault) -> Redraw:  # type: ignore[no-untyped-def]
    found = stages(parts())
    config = DraftModel(model=ITSELF, num_steps=16)
    return Redraw(found._recording, config, Rejection(), found._temperature, 5, plant=fault.plant)


@pytest.mark.parametrize("fault", IN_FREQUENCIES, ids=lambda fault: fault.name)
def test_faults_of_the_dice_show_in_frequencies(fault) -> None:  # type: ignore[no-untyped-def]
    found = seek(planted(fault), 40_000, ALARM, Here(), 1)
    assert found.caught
    assert found.fit.p_value < ALARM
    assert found.needed == 0


def test_a_fault_too_small_to_see_tells_how_many_draws_would_show_it() -> None:
    redraw = planted(next(fault for fault in IN_FREQUENCIES if fault.name == "reused noise"))
    missed = seek(redraw, 3200, ALARM, Here(), 1)
    assert not missed.caught
    assert missed.draws == 3200 < missed.needed < 100_000
    assert seek(redraw, missed.needed, ALARM, Here(), 1).caught


@dataclass
class Certain:
    """Counts nothing, and gives the same odds at every look."""

    odds: float
    looked: list[int] = field(default_factory=list)

    def batches(self, draws: int) -> int:
        return draws

    def count(self, batch: int) -> torch.Tensor:
        return torch.tensor(1)

    def drawn(self, counts: torch.Tensor) -> int:
        return int(counts)

    def fit(self, counts: torch.Tensor) -> Fit:
        self.looked.append(int(counts))
        return Fit(60.0, 10, self.odds, 0)


@pytest.mark.parametrize(("odds", "looked"), [(0.9e-6 / 3, [2]), (1.1e-6 / 3, [2, 4, 7])])
def test_the_odds_of_all_looks_together_are_the_alarm(odds: float, looked: list[int]) -> None:
    source = Certain(odds)
    assert seek(source, 7, 1e-6, Here(), 2).caught is (len(looked) == 1)
    assert source.looked == looked


@pytest.mark.parametrize("rule", ["block", "multi-step"])
@pytest.mark.parametrize("case", ["ngram", "draft_model"])
def test_frequencies_of_a_clean_engine_pass(case: str, rule: str) -> None:
    found = stages(parts(case, model="bad"))
    redraw = Redraw(found._recording, by_id(case, "bad"), make_verifier(rule), found._temperature, 1, each=25)
    result = check_frequencies("frequencies", redraw, 1600, ALARM, Here())
    assert result.passed, result.detail


def test_every_exact_ratio_rule_is_drawn_from() -> None:
    chain = [stage.name for stage in stages(parts("draft_model")).stages()]
    assert "frequencies through the real sampler: coupled, draft_model" in chain
    for rule in ("block", "multi-step", "recursive", "rejection", "traversal"):
        assert f"frequencies: {rule}, draft_model" in chain
        assert f"frequencies: {rule}, the target itself" in chain
        assert f"frequencies through the real sampler: {rule}, the target itself" in chain
    tree = [stage.name for stage in stages(parts("draft_model-tree")).stages()]
    assert "frequencies: block, draft_model" not in tree
    assert "frequencies: traversal, draft_model" in tree


@pytest.mark.parametrize("case", ["eagle3", "medusa", "dspark", "lookup_model-head"])
def test_what_reads_hidden_rows_is_left_out_of_frequencies(case: str) -> None:
    """A recording has none."""
    names = [stage.name for stage in stages(parts(case)).stages()]
    assert not [name for name in names if case.partition("-")[0] in name]
    assert [name for name in names if "the target itself" in name]


def test_a_recording_keeps_the_targets_law() -> None:
    recording = stages(parts("draft_model", model="bad"))._recording
    law = recording.law(TARGET, 1.5)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=1e-9)
    assert len(law) == 6**3
    laws = recording.laws(SamplingParams(temperature=1.5))
    rows = torch.cat(list(recording.rows.values()))
    assert (-rows.amax(dim=1)).round().long().tolist() == list(range(len(rows)))
    assert laws.sum(1).tolist() == pytest.approx([1.0] * len(laws))
    first = recording.rows[TARGET][recording.root]
    marginal = {}
    for text, chance in law.items():
        marginal[text[0]] = marginal.get(text[0], 0.0) + chance
    expected = torch.softmax(first.double() / 1.5, 0)
    assert all(math.isclose(chance, float(expected[token]), rel_tol=1e-6) for token, chance in marginal.items())


class AcceptsEverything(Coupled):
    def accept(self, tree, rows):  # type: ignore[no-untyped-def]
        node, path = 0, []
        while tree.children[node]:
            node = tree.children[node][0]
            path.append(node)
        return Verdict.of(tree, path, rows.tokens[node])


def test_a_wrong_rule_fails_the_whole_audit_and_a_lossy_one_is_refused() -> None:
    engine = replace(parts("draft_model", model="bad"), verifier=AcceptsEverything())
    batch = decode_plainly(engine, GREEDY, PROMPTS, tokens=12, seed=0)
    assert not check_texts("texts", engine, engine, batch, exact=False).passed
    lossy = AcceptsEverything()
    lossy.lossless = False  # type: ignore[misc]
    with pytest.raises(ConfigError, match="is not lossless"):
        audit(replace(engine, verifier=lossy), PROMPTS, model="tiny")


def test_other_methods_are_compared_too() -> None:
    engine = parts()
    others = [parts("suffix")]
    effort = Effort(scope="greedy", tokens=8)
    report = audit(engine, PROMPTS * 4, model="tiny", others=others, effort=effort)
    names = [check.name for check in report.checks]
    assert report.passed
    assert [sum(method in name for name in names) for method in ("ngram", "suffix")] == [1, 1]
    assert all(f"{4 * len(PROMPTS)} of {4 * len(PROMPTS)} texts" in check.detail for check in report.checks[:2])
    assert report.false_alarm == 0.0


def test_a_fault_in_another_method_is_told() -> None:
    engine = parts()
    batch = decode_plainly(engine, GREEDY, PROMPTS, tokens=24, seed=0)
    broken = IN_TEXTS[0].plant(with_decoys(engine, batch))
    report = audit(engine, PROMPTS, model="tiny", others=[broken], effort=Effort(scope="greedy", tokens=24))
    assert [check.name for check in report.checks if not check.passed] == ["greedy: decoys, coupled"]
    assert not report.passed


def test_a_whole_small_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.audit.stages.FEWEST_MINIATURES", 128)
    report = audit(parts(), PROMPTS[:3], model="tiny", effort=Effort(tokens=16, draws=256))
    value = json.loads(json.dumps(report.to_json()))
    assert set(value) == {
        "passed",
        "proof",
        "checks",
        "faults",
        "flips",
        "model",
        "verifier",
        "algorithm",
        "false_alarm",
        "seconds",
    }
    assert all(check["passed"] for check in value["checks"])
    planted = (*IN_TEXTS, *IN_PREFIXES, *IN_SITUATIONS, *IN_FREQUENCIES, *IN_LAWS)
    assert [fault["name"] for fault in value["faults"]] == [fault.name for fault in planted]
    assert value["false_alarm"] == FALSE_ALARM
    assert report.proof is Proof.TOO_WEAK, "so few draws cannot show every fault"
    assert "Too weak: raise --draws to about" in report.summary()
    assert max(fault["remedy"]["draws"] for fault in value["faults"] if not fault["caught"]) > 256


def test_tail_is_scipys() -> None:
    for statistic, degrees in ((3.0, 2), (150.0, 80), (400.0, 120), (900.0, 215)):
        assert math.isclose(tail(statistic, degrees), stats.chi2.sf(statistic, degrees), rel_tol=1e-6)


def test_chi_square_pools_rare_cells_and_sees_the_impossible() -> None:
    law = torch.tensor([0.5, 0.25, 0.2499, 0.0001])
    fit = chi_square(torch.tensor([5000, 2500, 2499, 1]), law)
    assert fit.degrees == 2
    assert fit.p_value > 0.9
    assert chi_square(torch.tensor([9, 0, 0, 0]), torch.tensor([0.0, 0.5, 0.5, 0.0])).p_value == 0.0
    assert 0.01 < detectable(100_000, 100, 1e-7) < 0.03


@pytest.mark.parametrize(("variation", "degrees", "samples"), [(0.1, 8, 1000), (0.05, 120, 3200), (0.3, 30, 64)])
def test_so_many_samples_as_are_needed_show_what_fewer_could_not(variation: float, degrees: int, samples: int) -> None:
    """A statistic that lies where this variation puts it on average tells when the variation is sure to be seen."""
    found = needed(Fit(degrees + 4 * variation**2 * samples, degrees, 0.5, 0), samples, ALARM)
    shift = max(4 * variation**2, (2 * degrees) ** 0.5 / samples)
    assert detectable(found, degrees, ALARM) <= (shift / 4) ** 0.5
    assert found > samples
    assert detectable(found * 3 // 4, degrees, ALARM) > (shift / 4) ** 0.5 or found < 2 * samples


@pytest.mark.parametrize("truncation", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.7}])
def test_survivors_are_the_samplers(truncation: dict[str, float]) -> None:
    params = SamplingParams(temperature=0.9, repetition_penalty=1.4, frequency_penalty=0.3, **truncation)  # type: ignore[arg-type]
    history = [3, 3, 7, 9, 3, 11]
    row = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(4)) * 2
    sampler = RequestSampler(
        params, seed=1, choice=0, vocabulary=VOCABULARY, committed=history[:4], prompt_length=4, end_ids=()
    )
    sampler._committed = history
    sampler.commit(history[4:])
    expected = sampler.probabilities(row.unsqueeze(0), [()])[0] > 0
    scaled = penalised(row, history, 4, params) / params.temperature
    assert survivors(scaled, params, score=0.0, mass=0.0).tolist() == expected.tolist()
    assert int(survivors(scaled, params, score=0.5, mass=0.05).sum()) >= int(expected.sum())


def test_rounding_grows_with_coarser_precision() -> None:
    assert rounding(20.0, torch.float32) == 1e-4
    assert rounding(20.0, torch.float16) == 4 * 2.0**-10 * 16
    assert rounding(20.0, torch.bfloat16) == 4 * 2.0**-7 * 16


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": ""}', '{"turns": []}'])
def test_bad_prompt_files_are_one_sentence(tmp_path, line: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        audit_prompts(file)


def test_prompt_files_may_name_the_text_in_three_ways(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"text": "b"}\n{"turns": ["c", "d"]}\n')
    found = audit_prompts(file)
    assert [(prompt.messages, prompt.text) for prompt in found] == [
        ((("user", "a"),), ""),
        ((), "b"),
        ((("user", "c"),), ""),
    ]


@pytest.mark.parametrize("field", ["tokens", "draws", "seed", "workers"])
def test_effort_out_of_bounds_names_the_field(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Effort(**{field: -1})
