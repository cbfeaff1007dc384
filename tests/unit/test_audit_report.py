"""What an audit says at the end and on the way: the three ends, their exit codes, a line or a bar for each stage."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from outrider.audit.faults import IN_FREQUENCIES, IN_LAWS, IN_PREFIXES, IN_SITUATIONS, IN_TEXTS
from outrider.audit.progress import run_stages
from outrider.audit.report import CheckResult, FaultResult, Proof, Remedy, Report, Stage
from outrider.cli.commands import BAD_INPUT

GOOD, BAD = CheckResult("a", True, "fine"), CheckResult("b", False, "text 1 differs")
BLIND = CheckResult("c", True, "nothing met", remedy=Remedy(advice="bring more prompts"))
CAUGHT = FaultResult("d", True, "a")
MISSED = FaultResult("e", False, "", "p 0.1", Remedy(draws=12_000))
SLIGHT = FaultResult("f", False, "", "p 0.2", Remedy(draws=51_000))
SOUND = Report("m", "x", "y", (GOOD,), (CAUGHT,), 1e-6, 1.0)


@pytest.mark.parametrize(
    ("checks", "faults", "proof", "says"),
    [
        ((GOOD,), (CAUGHT,), Proof.LOSSLESS, "Lossless: 1 checks passed and all 1 planted faults were caught"),
        ((GOOD, BAD), (CAUGHT,), Proof.DIFFERS, "NOT proved lossless: 1 of 2 checks failed"),
        ((BAD, BLIND), (MISSED,), Proof.DIFFERS, "NOT proved lossless: 1 of 2 checks failed"),
        ((GOOD,), (CAUGHT, MISSED, SLIGHT), Proof.TOO_WEAK, "Too weak: raise --draws to about 51000; "),
        ((GOOD, BLIND), (CAUGHT,), Proof.TOO_WEAK, "Too weak: bring more prompts; "),
        ((BLIND,), (MISSED,), Proof.TOO_WEAK, "Too weak: raise --draws to about 12000 and bring more prompts; "),
    ],
)
def test_the_three_ends(
    checks: tuple[CheckResult, ...], faults: tuple[FaultResult, ...], proof: Proof, says: str
) -> None:
    report = replace(SOUND, checks=checks, faults=faults)
    assert report.proof is proof
    assert report.passed is (proof is Proof.LOSSLESS)
    assert report.summary().startswith(says)
    assert ("NOT" in report.summary()) is (proof is Proof.DIFFERS), "weakness is no difference"
    assert json.loads(json.dumps(report.to_json()))["proof"] == proof.word


def test_the_exit_codes_tell_the_ends_apart() -> None:
    codes = {proof: proof.exit_code for proof in Proof}
    assert codes == {Proof.LOSSLESS: 0, Proof.DIFFERS: 1, Proof.TOO_WEAK: 3}
    assert BAD_INPUT not in codes.values()


def test_what_was_missed_is_named() -> None:
    report = replace(SOUND, checks=(GOOD, BLIND), faults=(CAUGHT, MISSED))
    assert "1 of 2 planted faults were missed (e)" in report.summary()
    assert "1 of them had nothing to compare (c)" in report.summary()
    console = Console(width=120, record=True, file=io.StringIO())
    for table in report.tables():
        console.print(table)
    text = console.export_text()
    assert "nothing: TOO WEAK" in text
    assert text.count("TOO WEAK") == 2
    assert "FAILED" not in text


def test_the_page_names_every_planted_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8").replace("`", "")
    table = page.partition("| fault | caught by |")[2].partition("\n\n")[0]
    rows = [re.split(r":? ?\|", line)[1].strip() for line in table.splitlines() if line.startswith("| ")]
    planted = (*IN_TEXTS, *IN_PREFIXES, *IN_SITUATIONS, *IN_FREQUENCIES, *IN_LAWS)
    assert [row.partition(":")[0] for row in rows] == [fault.name for fault in planted]
    assert len(planted) == 16, "the page says sixteen"


def watched(console: Console | None) -> None:
    results = (CheckResult("greedy", True, ""), FaultResult("stale KV row", True, "greedy"))
    stages = [Stage(result.name, lambda result=result: result) for result in results]  # type: ignore[misc]
    assert tuple(run_stages(stages, console)) == results


def test_a_pipe_gets_one_line_for_each_stage() -> None:
    file = io.StringIO()
    watched(Console(file=file, width=140, soft_wrap=True))
    first, second = file.getvalue().splitlines()
    assert first.startswith("1/2 greedy: passed, ")
    assert second.startswith("2/2 stale KV row: caught, ")
    assert "\x1b" not in file.getvalue()


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    file = io.StringIO()
    watched(Console(file=file, width=140, force_terminal=True))
    assert "1/2 greedy" not in file.getvalue()
    assert "\x1b[" in file.getvalue()


def test_nobody_need_watch(capsys: pytest.CaptureFixture[str]) -> None:
    watched(None)
    assert capsys.readouterr() == ("", "")
