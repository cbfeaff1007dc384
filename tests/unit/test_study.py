"""The study: perplexity against a direct computation, rank correlations against scipy's, and the command end to end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_text import byte_tokenizer
from contract.cases import by_id
from scipy import stats
from tiny import VOCABULARY, tiny_model, tiny_module
from tiny_folder import make_folder
from tiny_heads import tiny_head

from outrider.bench.prompts import Encoded
from outrider.bench.runner import Arm, Models, Sample, Setting
from outrider.cli import main
from outrider.cli.drafts import draft_arms, read_draft
from outrider.drafters.base import DrafterConfig
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.ngram import Ngram
from outrider.errors import ConfigError
from outrider.heads.checkpoint import write_head
from outrider.heads.runner import ready
from outrider.metrics import PhaseSeconds, SpeculationStats
from outrider.prompts import Prompt
from outrider.study.plot import picture
from outrider.study.quality import Quality, no_quality, quality
from outrider.study.ranks import chance, kendall, ranks, spearman
from outrider.study.run import MEASURES, _quality, correlations
from outrider.verify import make_verifier

TIED = ([1.0, 2.0, 2.0, 5.0, 4.0, 3.0], [0.3, 0.1, 0.5, 0.5, 0.9, 0.2])


class TestRanks:
    def test_equal_values_share_a_rank(self) -> None:
        assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]

    @pytest.mark.parametrize(("x", "y"), [TIED, ([1, 2, 3, 4], [1, 4, 2, 3]), ([1, 2, 3], [3, 2, 1])])
    def test_correlations_are_scipys(self, x: Sequence[float], y: Sequence[float]) -> None:
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
        assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)

    def test_hand_made_values(self) -> None:
        # Ranks 1234 against 1423: Σd² = 0 + 4 + 1 + 1, so ρ = 1 − 6·6 ÷ (4·15); 4 pairs agree and 2 do not.
        assert spearman([1, 2, 3, 4], [1, 4, 2, 3]) == pytest.approx(0.4)
        assert kendall([1, 2, 3, 4], [1, 4, 2, 3]) == pytest.approx(2 / 6)

    @pytest.mark.parametrize("correlation", [spearman, kendall])
    @pytest.mark.parametrize(("x", "y"), [([1, 2], [1, 2]), ([], []), ([1, 1, 1], [1, 2, 3])])
    def test_too_few_or_all_equal_is_no_correlation(
        self, correlation: Any, x: Sequence[float], y: Sequence[float]
    ) -> None:
        assert correlation(x, y) is None
        assert chance(correlation, x, y) is None

    def test_chance_is_the_share_of_orders(self) -> None:
        assert chance(kendall, [1, 2, 3, 4], [1, 2, 3, 4]) == pytest.approx(2 / 24)
        assert chance(spearman, [1, 2, 3], [1, 3, 2]) == 1.0

    def test_chance_of_many_is_drawn(self) -> None:
        x = [float(i) for i in range(10)]
        assert chance(spearman, x, x) == pytest.approx(1 / 4001)
        y = [x[i] for i in (4, 0, 7, 1, 9, 2, 3, 8, 6, 5)]
        assert chance(spearman, x, y) == pytest.approx(stats.spearmanr(x, y).pvalue, abs=0.03)


def answer(prompt: Sequence[int], tokens: Sequence[int]) -> Sample:
    row = Prompt(0, "row", "words", text="text")
    plain = Arm("plain", by_id("none"), make_verifier("coupled"), plain=True)
    stats_, seconds = SpeculationStats(), PhaseSeconds()
    return Sample(
        Encoded(row, tuple(prompt)), Setting(0, 1), plain, 0, 0, tuple(tokens), "length", stats_, seconds, 0.0, 1.0
    )


ANSWERS = [answer([1, 2, 3, 4, 5], [7, 8, 9, 1, 2, 3]), answer([9] * 40, [3, 1, 4, 1, 5, 9, 2, 6])]


def models(**heads: Any) -> Models:
    return Models(tiny_model(0), byte_tokenizer(), {"draft": tiny_model(1)}, heads)


def direct_losses(seed: int) -> list[float]:
    """The negative log-likelihoods, by one pass of the bare transformers module over each whole text."""
    found = []
    for each in ANSWERS:
        text = torch.tensor([[*each.prompt.token_ids, *each.token_ids]])
        rows = torch.log_softmax(tiny_module(seed, attention="eager")(text).logits[0].double(), -1)
        first = len(each.prompt.token_ids) + 1
        found += [-float(rows[place - 1, text[0, place]]) for place in range(first, text.shape[1])]
    return found


class TestQuality:
    @pytest.mark.parametrize("topk", [1, 3])
    def test_a_draft_models_perplexity_is_the_modules(self, topk: int) -> None:
        steps: list[int] = []
        found = quality(models(), DraftModel(model="draft", topk=topk), ANSWERS, lambda: steps.append(1))
        expected = direct_losses(1)
        assert (found.judged, found.tokens, found.reason) == (len(expected), 5 + 7, None)
        assert found.loss == pytest.approx(sum(expected), rel=1e-5)
        assert found.perplexity == pytest.approx(math.exp(sum(expected) / len(expected)), rel=1e-5)
        assert len(steps) == len(ANSWERS)

    def test_the_target_itself_judges_its_answers_best(self) -> None:
        itself = Models(tiny_model(0), byte_tokenizer(), {"draft": tiny_model(0)})
        assert quality(itself, DraftModel(model="draft"), ANSWERS).loss == pytest.approx(
            sum(direct_losses(0)), rel=1e-5
        )

    def test_a_heads_is_that_of_its_rows_on_the_targets(self) -> None:
        head = tiny_head("medusa", tiny_model(0))
        found = quality(models(tiny=head), by_id("medusa"), ANSWERS)
        net: Any = ready(head.build(), tiny_model(0))  # in the precision that it drafts in
        losses = []
        for each in ANSWERS:
            text = [*each.prompt.token_ids, *each.token_ids]
            final = tiny_module(0, attention="eager").model(torch.tensor([text])).last_hidden_state[0]
            for place in range(len(each.prompt.token_ids) + 1, len(text)):
                row = torch.full((VOCABULARY,), -torch.inf)
                row[net.ids] = net(final[place - 2 : place - 1])[0, 0]
                losses.append(-float(torch.log_softmax(row, 0)[text[place]]))
        known = [loss for loss in losses if loss < math.inf]
        assert 0 < len(known) < len(losses), "the reduced vocabulary leaves some tokens out"
        assert (found.judged, found.tokens) == (len(known), len(losses))
        assert found.loss == pytest.approx(sum(known), rel=1e-4)

    @pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "blockwise", "dflash", "dspark"])
    def test_every_head_can_be_judged(self, method: str) -> None:
        found = quality(models(tiny=tiny_head(method, tiny_model(0))), by_id(method), ANSWERS)
        assert 0 < found.judged <= found.tokens == 12
        assert found.perplexity is not None
        assert 1.0 < found.perplexity < math.inf

    def test_a_head_is_judged_where_a_row_is_not_worth_its_cost(self) -> None:
        heads = models(tiny=tiny_head("dspark", tiny_model(0)))
        config = by_id("dspark")
        dear, free = (quality(heads, replace(config, row_cost=cost), ANSWERS) for cost in (10.0, 0.0))
        assert dear == free

    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            ("ngram", "no distribution"),
            ("suffix", "no distribution"),
            ("lookup_model", "no distribution"),
            ("specinfer", "several models"),
        ],
    )
    def test_what_has_no_law_has_no_perplexity(self, case: str, reason: str) -> None:
        found = quality(models(), by_id(case), ANSWERS)
        assert found.perplexity is None
        assert reason in str(found.reason)
        assert no_quality(by_id(case)) == found.reason

    def test_a_drafter_that_stays_silent_is_told(self) -> None:
        found = quality(models(), DraftModel(model="draft", num_steps=0, num_draft_tokens=4), ANSWERS)
        assert found == Quality(0.0, 0, 12, "it gave no token of the answers a probability")


class TestDrafts:
    @pytest.mark.parametrize(
        ("text", "config", "name"),
        [
            ("NGRAM", Ngram(), "NGRAM"),
            ("ngram:num_draft_tokens=3", Ngram(num_draft_tokens=3), "ngram:num_draft_tokens=3"),
            ("ngram:speculative-num-draft-tokens=3", Ngram(num_draft_tokens=3), None),
            ("ngram:num-draft-tokens=3", Ngram(num_draft_tokens=3), None),
            ("draft_model:a/b.gguf", DraftModel(model="a/b.gguf"), "draft_model:b"),
            ("draft-model:a/b:topk=2:num_steps=5", DraftModel(model="a/b", topk=2, num_steps=5), None),
            ("draft_model:runs/lr=3e-4:topk=2", DraftModel(model="runs/lr=3e-4", topk=2), None),
        ],
    )
    def test_a_word_is_a_config(self, text: str, config: DrafterConfig, name: str | None) -> None:
        found = read_draft(text)
        assert found.config == config
        assert found.name == (name or found.name)

    def test_several_models_stand_between_commas(self) -> None:
        assert read_draft("specinfer:a,b").config.models == ("a", "b")  # type: ignore[attr-defined]

    def test_equal_short_names_are_told_apart(self) -> None:
        arms = draft_arms(["draft_model:a/m", "draft_model:b/m", "ngram"], "coupled")
        assert [arm.name for arm in arms] == ["none", "draft_model:a/m", "draft_model:b/m", "ngram"]
        assert [arm.plain for arm in arms] == [True, False, False, False]

    @pytest.mark.parametrize(
        ("texts", "named"),
        [
            ([], "at least one drafter"),
            (["oracle"], "oracle"),
            (["none"], "drafts nothing"),
            (["ngram", "ngram:num_draft_tokens=8"], "twice"),
            (["ngram:some/model"], "uses no model"),
            (["draft_model"], "draft_model:PATH"),
            (["draft_model:a:b"], "OPTION=VALUE"),
            (["ngram:depth=3"], "no option 'depth'"),
            (["ngram:num_draft_tokens=many"], "takes a whole number"),
            (["ngram:num_draft_tokens=1.5"], "takes a whole number"),
            (["ngram:num_draft_tokens=9999"], "at most"),
            (["ngram:num_draft_tokens=0"], "drafts nothing"),
        ],
    )
    def test_a_word_that_is_none_is_refused(self, texts: list[str], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            draft_arms(texts, "coupled")

    def test_a_rule_must_be_exact_for_every_drafter(self) -> None:
        with pytest.raises(ConfigError, match="not exact for trees"):
            draft_arms(["draft_model:a:topk=3"], "rejection")


def row(name: str, speedup: float, perplexity: float | None, ms: float = 1.0) -> dict[str, Any]:
    figures = dict.fromkeys(MEASURES, 1.0) | {
        "perplexity": perplexity,
        "draft_ms_per_token": ms,
        "draft_ms_per_round": ms,
    }
    return {"name": name, "speedup": speedup, "speedup_interval": (speedup - 0.1, speedup + 0.1)} | figures


def test_a_drafter_that_fails_while_it_is_judged_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> Quality:
        raise RuntimeError("out of memory, say")

    monkeypatch.setattr("outrider.study.run.quality", broken)
    told = _quality(SimpleNamespace(models=None), SimpleNamespace(config=None), [], lambda: None)  # type: ignore[arg-type]
    assert told.reason == "it failed while it was judged: RuntimeError: out of memory, say"
    assert told.perplexity is None


def test_a_correlation_counts_the_drafters_that_have_the_figure() -> None:
    rows = [row("a", 2.0, 3.0, 1.0), row("b", 1.5, None, 2.0), row("c", 1.2, 2.0, 3.0), row("d", 1.0, 1.0, 4.0)]
    found = {each["measure"]: each for each in correlations(rows)}
    assert (found["perplexity"]["n"], found["perplexity"]["spearman"]) == (3, pytest.approx(1.0))
    assert (found["draft_ms_per_token"]["n"], found["draft_ms_per_token"]["kendall"]) == (4, pytest.approx(-1.0))
    assert found["acceptance_rate"]["spearman"] is None, "all alike"


def test_points_that_lie_together_keep_their_labels_apart() -> None:
    rows = [row(f"drafter {i}", 1.5 + 0.01 * i, 2.0, 3.0) for i in range(5)]
    result = {
        "model": {"name": "<m>"},
        "machine": {"cpu": "a CPU", "threads": 2},
        "workload": {"prompts": 9, "file": "some.jsonl", "max_tokens": 8},
        "study": {"drafters": rows, "correlations": correlations(rows)},
    }
    svg = picture(result)
    assert svg.count("<circle") == 2 * len(rows)
    assert "&lt;m&gt;" in svg
    for number in range(1, len(rows) + 1):
        assert svg.count(f'class="label" text-anchor="middle">{number}</text>') == 2
        assert svg.count(f'class="label" text-anchor="end">{number}</text>') == 1
        assert f">drafter {number - 1}</text>" in svg
        assert f">1.5{number - 1}×" in svg
    places = [mark.split(' class="label"')[0] for mark in svg.split("<text")[1:] if "middle" in mark]
    assert len(set(places)) == len(places)


PROMPTS = [{"id": f"p{i}", "category": "words", "turns": ["ab " * (4 + i)]} for i in range(3)]
Study = Callable[..., int]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("study")
    for name, seed in (("target", 0), ("near", 0), ("far", 1)):
        make_folder(place / name, seed=seed)
    target = tiny_model(0, 320)
    write_head(place / "head", tiny_head("eagle3", target))
    (place / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    return place


class TestCommand:
    @pytest.fixture
    def study(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
        monkeypatch.setattr("outrider.bench.machine._BUFFER_BYTES", 2**20)
        monkeypatch.chdir(place)

        def run(*flags: str) -> int:
            return main(["study", "--model", "target", "--prompts", "prompts.jsonl", "--max-tokens", "12", *flags])

        return run

    def test_end_to_end(self, study: Study, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        drafts = ["ngram", "draft_model:near", "draft_model:far", "eagle3:head:num_steps=2"]
        flags = [part for draft in drafts for part in ("--draft", draft)]
        assert study(*flags, "--json", "out.json", "--output", "out.svg") == 0
        shown = capsys.readouterr().out
        assert "Spearman" in shown
        assert "no perplexity, a lookup has no distribution: ngram" in shown
        assert "few drafters (4)" in shown
        result = json.loads((place / "out.json").read_text())
        rows = {each["name"]: each for each in result["study"]["drafters"]}
        assert list(rows) == ["ngram", "draft_model:near", "draft_model:far", "eagle3:head:num_steps=2"]
        assert [arm["name"] for arm in result["algorithms"]] == ["none", *rows]
        assert rows["ngram"]["perplexity"] is None
        assert rows["draft_model:near"]["perplexity"] < rows["draft_model:far"]["perplexity"]
        assert rows["draft_model:near"]["acceptance_rate"] > rows["draft_model:far"]["acceptance_rate"]
        for name, each in rows.items():
            entry = next(e for e in result["results"] if e["algorithm"] == name and e["category"] == "all")
            seconds = entry["per_round"]["draft_s"] * entry["rounds"]
            assert each["speedup"] == entry["speedup"]
            assert each["median_speedup"] > 0 if each["drafted"] else each["median_speedup"] is None
            assert each["drafted"] == 0 or each["draft_ms_per_token"] * each["drafted"] == pytest.approx(1000 * seconds)
        counts = {each["measure"]: each["n"] for each in result["study"]["correlations"]}
        assert counts["perplexity"] == 3
        assert (place / "out.svg").read_text().startswith("<svg xmlns=")

    def test_json_is_the_last_line(self, study: Study, capsys: pytest.CaptureFixture[str]) -> None:
        assert study("--draft", "suffix", "--json", "-", "--temperature", "1") == 0
        captured = capsys.readouterr()
        result = json.loads(captured.out.splitlines()[-1])
        assert result["study"]["drafters"][0]["name"] == "suffix"
        assert result["study"]["correlations"][0]["spearman"] is None
        assert "Quality and cost" in captured.err

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            ("", "at least one drafter"),
            ("--draft oracle", "oracle"),
            ("--draft ngram --json nowhere/out.json", "nowhere"),
            ("--draft ngram --output nowhere/out.svg", "nowhere"),
            ("--draft ngram --temperature -1", "temperature"),
            ("--draft ngram --verifier luck", "luck"),
            ("--draft eagle3:far", "far"),
        ],
    )
    def test_bad_input(self, study: Study, capsys: pytest.CaptureFixture[str], flags: str, named: str) -> None:
        assert study(*flags.split()) == 2
        captured = capsys.readouterr()
        assert named in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out
