"""What a bench and a study say first, and their tables: whole in eighty columns."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outrider.bench.page import page
from outrider.bench.report import ALL
from outrider.bench.table import show as show_bench
from outrider.bench.verdict import FEW, Gain, verdict, verdicts
from outrider.study.table import short
from outrider.study.table import show as show_study

RESULTS = Path(__file__).parents[2] / "results"
COLUMNS = 80
SUFFIX = Gain("suffix", 1.4, (1.2, 1.6))
NGRAM = Gain("ngram", 1.3, (1.1, 1.5))
SLOW = Gain("draft_model", 0.8, (0.7, 0.9))
DOUBTFUL = Gain("eagle3", 1.9, (0.99, 2.8))
EXACTLY = Gain("medusa", 1.5, (1.0, 2.0))
LUCKY = Gain("dspark", 2.0, None)


class TestVerdict:
    @pytest.mark.parametrize(
        ("gains", "told"),
        [
            ([SLOW, SUFFIX], "pays: suffix 1.40× (1.20–1.60)"),
            ([NGRAM, SUFFIX, DOUBTFUL], "pays: suffix 1.40× (1.20–1.60), ngram 1.30× (1.10–1.50)"),
            ([SLOW, DOUBTFUL], "no method pays; eagle3 1.90× (0.99–2.80) comes nearest"),
            ([EXACTLY], "no method pays; medusa 1.50× (1.00–2.00) comes nearest"),
            ([LUCKY, SLOW], "no method pays; dspark 2.00× comes nearest"),
            ([LUCKY], "no method can be told to pay from one prompt; give more (dspark 2.00× on this one)"),
            ([], "no method pays: nothing was drafted"),
            ([Gain("x", None, None)], "no method pays: nothing was drafted"),
            ([SUFFIX] * 5, f"pays: {', '.join(['suffix 1.40× (1.20–1.60)'] * 3)} and 2 more"),
        ],
    )
    def test_pays_means_that_the_lower_end_is_a_gain(self, gains: list[Gain], told: str) -> None:
        assert verdict(gains, FEW) == told

    @pytest.mark.parametrize("gains", [[SUFFIX, SLOW], [SLOW, DOUBTFUL]])
    def test_it_says_how_few_the_prompts_were(self, gains: list[Gain]) -> None:
        for prompts in (2, FEW - 1):
            caution = f"; few prompts ({prompts}): an interval may be too narrow"
            assert verdict(gains, prompts) == verdict(gains, FEW) + caution

    def test_the_page_and_the_terminal_carry_the_caution(self) -> None:
        result = next(iter(BENCHES.values()))
        few = result | {"results": [row | {"prompts": 4} for row in result["results"]]}
        caution = "few prompts (4): an interval may be too narrow"
        assert caution in shown(show_bench, few).split("\n")[0]
        assert caution in page(few).partition("<h1>")[2].partition("</h1>")[0]
        assert "few prompts" not in shown(show_bench, result) + page(result)

    def test_each_way_to_sample_has_its_own(self) -> None:
        entries = [entry(0, SUFFIX), entry(1, DOUBTFUL), entry(1, SLOW), entry(1, NGRAM) | {"category": "code"}]
        assert verdicts(entries[:1]) == ["pays: suffix 1.40× (1.20–1.60)"]
        assert verdicts(entries) == [
            "greedy: pays: suffix 1.40× (1.20–1.60)",
            "T=1: no method pays; eagle3 1.90× (0.99–2.80) comes nearest",
        ]

    def test_plain_decoding_and_a_method_that_drafted_nothing_do_not_pay(self) -> None:
        assert verdicts([entry(0, SUFFIX) | {"drafted": 0}]) == ["no method pays: nothing was drafted"]

    def test_a_rule_that_changes_the_text_is_named(self) -> None:
        lossy = entry(1, SUFFIX) | {"lossless": False, "verifier": "typical"}
        assert verdicts([lossy]) == ["pays: suffix under typical (lossy: not the target's text) 1.40× (1.20–1.60)"]


def entry(temperature: float, gain: Gain) -> dict[str, Any]:
    return {
        "setting": "greedy" if temperature == 0 else f"T={temperature:g}",
        "category": ALL,
        "algorithm": gain.name,
        "verifier": "coupled",
        "lossless": True,
        "speedup": gain.speedup,
        "speedup_interval": gain.interval,
        "drafted": 100,
        "prompts": 20,
    }


def read(path: Path) -> dict[str, Any]:
    """A result of an earlier version, with the keys that have come since."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for row in (*result["results"], *result.get("study", {"drafters": ()})["drafters"]):
        row.setdefault("verifier", "coupled")
        row.setdefault("lossless", True)
    return result


def worst(result: dict[str, Any]) -> dict[str, Any]:
    """Two ways to sample, the longest names there are, and figures as wide as they get."""
    wide = {
        "algorithm": "lookup_model",
        "tokens_per_s": 12345.6,
        "speedup": 11.11,
        "speedup_interval": (10.11, 12.34),
        "end_to_end_speedup": 10.99,
        "acceptance_by_position": [0.99] * 16,
        "tested_by_position": [123456] * 16,
        "tested": 123456,
        "rounds": 123456,
        "per_round": {"draft_s": 12.34567, "verify_s": 12.34567, "other_s": 12.34567},
        "verify_cost": 11.11,
        "predicted_speedup": 11.11,
        "predicted_with_verify_cost": 11.11,
    }
    ties = {"promised": True, "texts": 1640, "same": 1600, "within_tie_rule": 40, "differences": []}
    rows = [
        row | wide | {"identical": ties, "category": f"summarization/biography {place % 3}"}
        for place, row in enumerate(result["results"])
    ]
    overall = [row | {"category": ALL, "setting": setting} for row in rows[:3] for setting in ("greedy", "T=0.7 p=0.9")]
    return result | {"results": [*sorted(overall, key=lambda row: row["setting"]), *rows[3:]]}


def shown(show: Callable[[Mapping[str, Any], Console], None], result: dict[str, Any]) -> str:
    text = io.StringIO()
    show(result, Console(file=text, width=COLUMNS, highlight=False, markup=False, emoji=False, soft_wrap=True))
    return text.getvalue()


BENCHES = {path.stem: read(path) for path in sorted(RESULTS.glob("eagle3_*.json"))}
BENCHES |= {"at its widest": worst(next(iter(BENCHES.values())))}
STUDIES = {path.stem: read(path) for path in sorted(RESULTS.glob("study_*.json"))}


def check_whole(text: str, figures: list[str]) -> None:
    """Nothing is cut, no table is wider than the terminal, and every figure is there in one piece."""
    assert "…" not in text
    tables = [line for line in text.split("\n") if line.startswith(" ")]
    assert len(tables) > 10
    assert max(map(len, tables)) <= COLUMNS
    words = text.split()
    assert [figure for figure in figures if any(part not in words for part in figure.split())] == []


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchs_tables_are_whole(name: str) -> None:
    result = BENCHES[name]
    overall = [each for each in result["results"] if each["category"] == ALL]
    figures = [f"{each['tokens_per_s']:.1f}" for each in overall]
    figures += [f"{each[key]:.2f}×" for each in overall for key in ("speedup", "end_to_end_speedup", "verify_cost")]
    figures += [f"{1000 * spent:.2f}" for each in overall for spent in each["per_round"].values()]
    figures += [f"{each['acceptance_rate']:.2f} ({each['tested']})" for each in result["results"] if each["tested"]]
    check_whole(shown(show_bench, result), figures)


@pytest.mark.parametrize("name", STUDIES)
def test_a_studys_tables_are_whole(name: str) -> None:
    rows = STUDIES[name]["study"]["drafters"]
    figures = [f"{each['speedup']:.2f}×" for each in rows]
    figures += [f"{each[key]:.2f}" for each in rows for key in ("perplexity", "draft_ms_per_round") if each[key]]
    check_whole(shown(show_study, STUDIES[name]), figures)


def test_the_verdict_comes_first() -> None:
    for result in BENCHES.values():
        first = verdicts(result["results"])
        assert shown(show_bench, result).split("\n")[: len(first)] == first
        body = page(result).partition("<body>")[2].replace("\u2060", "")
        assert body.startswith(f"<h1>{'<br>'.join(first)}</h1>")
    for result in STUDIES.values():
        assert shown(show_study, result).startswith(("pays: ", "no method pays"))


def test_the_page_scrolls_what_is_too_wide_for_a_telephone() -> None:
    text = page(next(iter(BENCHES.values())))
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert text.count("<table>") == text.count('<div class="scroll"><table>') > 1
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "overflow-x: auto" in style
    assert re.findall(r"(?<![-\w])(?:min-)?width: *\d+px", style) == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ngram", "ngram"),
        ("eagle3:eagle3:num_steps=2", "eagle3 num_steps=2"),
        ("draft_model:Qwen2.5-Coder-0.5B:topk=2", "draft_model Qwen2.5-Coder-0.5B topk=2"),
    ],
)
def test_short_names(name: str, told: str) -> None:
    assert short(name) == told
