"""Typical acceptance: the rule on laws made by hand, and that it is lossy, says so and is never taken by accident."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from contract.cases import PROMPTS, by_id, make
from tiny import tiny_model
from tiny_folder import make_folder

from outrider import SamplingParams
from outrider.audit import Effort, Parts, audit
from outrider.audit.frequencies import ITSELF, Here, Redraw, check_frequencies
from outrider.audit.stages import FrequencyStages
from outrider.bench.equality import promises_plain_text
from outrider.bench.runner import Setting
from outrider.cli import main
from outrider.cli.bench import method_arms
from outrider.cli.options import MethodFlags
from outrider.drafters.base import Needs
from outrider.drafters.draft_model import DraftModel
from outrider.engine.build import warn_lossy
from outrider.errors import ConfigError
from outrider.tree import TokenTree, TreeBuilder, root_only
from outrider.verify import check_exact, make_verifier, registered, repeats_plain_text
from outrider.verify.rejection import Rejection
from outrider.verify.typical import DELTA, EPSILON, Typical, threshold

LOSSY = Typical.name


class Laws:
    """The target's rows, as given."""

    def __init__(self, *laws: list[float]) -> None:
        self.probabilities = np.array(laws)


def tree(*links: tuple[int, int]) -> TokenTree:
    """(parent, token) of each node below the anchor."""
    builder = TreeBuilder(0)
    for parent, token in links:
        builder.add(parent, token)
    return builder.build()


class TestRule:
    def test_the_threshold_by_hand(self) -> None:
        assert (0.09, pytest.approx(0.3)) == (EPSILON, DELTA)
        certain, even = np.array([1.0, 0.0]), np.full(100, 0.01)
        assert threshold(certain) == EPSILON
        assert threshold(even) == pytest.approx(0.3 / 100)
        two = np.array([0.9, 0.1])
        entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
        assert threshold(two) == pytest.approx(min(0.09, 0.3 * math.exp(-entropy)))

    @pytest.mark.parametrize(
        ("law", "token", "accepted"),
        [
            ([0.85, 0.095, 0.055], 1, True),  # above ε, though far from the most probable
            ([0.85, 0.095, 0.055], 2, False),
            ([0.91, 0.09, 0.0], 1, False),  # equal to ε is not above it
            ([1.0, 0.0, 0.0], 1, False),
        ],
    )
    def test_a_draft_is_judged_by_its_own_probability(self, law: list[float], token: int, accepted: bool) -> None:
        verdict = Typical().accept(tree((0, token)), Laws(law, [0.0, 0.0, 1.0]))
        assert verdict.tokens == ((token, 2) if accepted else (0,))
        assert verdict.path == ((1,) if accepted else ())

    def test_an_open_target_accepts_what_a_sure_one_refuses(self) -> None:
        open_law = [0.05] * 20
        assert threshold(np.array(open_law)) < 0.05 < EPSILON
        assert Typical().accept(tree((0, 7)), Laws(open_law, open_law)).path == (1,)

    def test_the_longest_path_wins_and_then_the_likeliest(self) -> None:
        half, sure = [0.6, 0.4, 0.0], [0.0, 1.0, 0.0]
        # Node 1 is likelier than 2, but only below 2 the target likes what was drafted.
        grown = tree((0, 0), (0, 1), (1, 2), (2, 1))
        assert Typical().accept(grown, Laws(half, sure, sure, sure, [0.0, 0.0, 1.0])).path == (2, 4)
        assert Typical().accept(tree((0, 1), (0, 0)), Laws(half, sure, sure)).path == (2,)

    def test_nothing_accepted_is_the_targets_best_token(self) -> None:
        assert Typical().accept(root_only(3), Laws([0.2, 0.5, 0.3])).tokens == (1,)

    def test_rows_behind_a_refused_draft_are_never_read(self) -> None:
        verdict = Typical().accept(tree((0, 1), (1, 1)), Laws([1.0, 0.0], [math.nan] * 2, [math.nan] * 2))
        assert verdict.tokens == (0,)


def test_it_says_that_it_is_lossy() -> None:
    assert [name for name, rule in registered().items() if not rule.lossless] == [LOSSY]
    rule = make_verifier(LOSSY)
    assert not repeats_plain_text(rule)
    assert not promises_plain_text(rule, Setting(0, 1.0))


def test_it_takes_any_drafts_and_is_never_offered() -> None:
    check_exact(make_verifier(LOSSY), "any", Needs(branching=True, merged=True, deterministic=True))
    with pytest.raises(ConfigError) as error:
        check_exact(Rejection(), "any", Needs(branching=True))
    assert LOSSY not in str(error.value)


def test_the_engine_runs_it_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_lossy.cache_clear()
    sampled = SamplingParams(max_tokens=16, temperature=1.0, seed=1)
    with caplog.at_level(logging.WARNING, logger="outrider.engine.build"):
        texts = [make(by_id(case), verifier=LOSSY).generate(PROMPTS, sampled) for case in ("ngram", "draft_model-tree")]
    assert [record.getMessage() for record in caplog.records if record.name == "outrider.engine.build"] == [
        f"verifier {LOSSY!r} is lossy: the text will not be the target's own"
    ]
    plain = make("none").generate(PROMPTS, sampled)
    assert [one.token_ids for one in texts[0]] != [one.token_ids for one in plain]
    assert any(one.speculation.accepted for one in texts[1])


@pytest.mark.parametrize("case", ["ngram", "draft_model", "draft_model-tree", "medusa-tree"])
def test_at_temperature_zero_it_is_the_target_all_the_same(case: str) -> None:
    greedy = SamplingParams(max_tokens=16)
    plain, lossy = make("none"), make(by_id(case), verifier=LOSSY)
    expected, texts = ([one.token_ids for one in llm.generate(PROMPTS, greedy)] for llm in (plain, lossy))
    assert texts == expected


def parts(rule: str) -> Parts:
    return Parts(
        tiny_model(0), None, lambda name: (tiny_model(1), None), by_id("draft_model", "bad"), make_verifier(rule)
    )


def test_the_audit_refuses_it() -> None:
    with pytest.raises(ConfigError, match=r"'typical' is not lossless, so there is nothing to prove") as error:
        audit(parts(LOSSY), PROMPTS, model="tiny", effort=Effort(draws=64))
    assert LOSSY not in str(error.value).split("audit one of: ")[1]


@pytest.mark.parametrize(("rule", "passes"), [(Rejection(), True), (Typical(), False)], ids=["rejection", "typical"])
def test_a_chi_square_tells_it_from_the_target(rule: Typical | Rejection, passes: bool) -> None:
    found = FrequencyStages(parts("rejection"), PROMPTS, Effort(draws=3200), {"good": tiny_model(0)}, Here())
    redraw = Redraw(found._recording, DraftModel(model=ITSELF, num_steps=2), rule, found._temperature, 1, each=25)
    assert check_frequencies("frequencies", redraw, 1600, 1e-8, Here()).passed is passes


def test_plain_decoding_beside_it_stays_the_targets() -> None:
    arms = method_arms(MethodFlags(verifier=LOSSY), ["ngram"], "tiny")
    assert [(arm.plain, arm.verifier.lossless) for arm in arms] == [(True, True), (False, False)]


class TestCommands:
    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return make_folder(tmp_path_factory.mktemp("models") / "tiny")

    def test_generate_prints_it(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["generate", "a b a b", "--model", str(folder), "--max-tokens", "4"]
        assert main([*asked, "--verifier", LOSSY]) == 0
        assert "typical (lossy: not the target's text)" in capsys.readouterr().err
        for rule, lossless in ((LOSSY, False), ("coupled", True)):
            assert main([*asked, "--verifier", rule, "--json"]) == 0
            speculation = json.loads(capsys.readouterr().out.splitlines()[-1])["speculation"]
            assert (speculation["verifier"], speculation["lossless"]) == (rule, lossless)
        assert main(asked) == 0
        assert "lossy" not in capsys.readouterr().err

    def test_bench_and_study_print_it(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outrider.bench.machine._BUFFER_BYTES", 2**20)
        prompts, page = tmp_path / "prompts.jsonl", tmp_path / "page.html"
        prompts.write_text(json.dumps({"id": "a", "category": "b", "turns": ["ab ab ab"]}))
        asked = ["--model", str(folder), "--prompts", str(prompts), "--max-tokens", "8", "--json", "-"]
        asked += ["--verifier", LOSSY, "--temperature", "1"]
        for more in (["bench", "--algorithms", "ngram", "--html", str(page)], ["study", "--draft", "ngram"]):
            assert main([*more, *asked]) == 0
            captured = capsys.readouterr()
            assert "typical (lossy: not the target's text)" in captured.err
            result = json.loads(captured.out.splitlines()[-1])
            assert [arm["lossless"] for arm in result["algorithms"]] == [True, False]
            assert [entry["lossless"] for entry in result["results"][:2]] == [True, False]
            assert not result["results"][1]["identical"]["promised"]
        assert "lossy" in page.read_text()

    def test_info_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["info", "--methods"]) == 0
        assert "typical (lossy" in capsys.readouterr().out
        assert main(["info", "--json"]) == 0
        rules = json.loads(capsys.readouterr().out)["verifiers"]
        assert [name for name, rule in rules.items() if not rule["lossless"]] == [LOSSY]
        assert not rules[LOSSY]["exact_for_trees"]

    def test_audit_refuses_it(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["audit", "--model", str(folder), "--verifier", LOSSY]) == 2
        captured = capsys.readouterr()
        assert "is not lossless" in captured.err
        assert captured.err.count("\n") == 1
