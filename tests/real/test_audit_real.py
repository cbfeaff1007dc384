"""A short audit of a real model: every check passes and every planted fault is caught that so few draws can show.

Run with `pytest -m real tests/real/test_audit_real.py`; it is skipped where the model is not in the models folder.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.cli import main
from outrider.models.loading import models_folder

pytestmark = pytest.mark.real

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


NOISE = "reused noise"
"""The fault that shows only after more draws than these."""


def audited(method: list[str], draws: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    if not (models_folder() / SMOLLM2).is_file():
        pytest.skip(f"{SMOLLM2} is not in the models folder")
    method = [str(models_folder() / SMOLLM2) if item == SMOLLM2 else item for item in method]
    short = ["--max-tokens", "16", "--draws", str(draws), "--workers", "0", "--json"]
    code = main(["audit", "--model", str(models_folder() / SMOLLM2), *method, *short])
    printed = capsys.readouterr()
    *_, summary, result = printed.out.splitlines()
    report = json.loads(result)
    assert all(check["passed"] for check in report["checks"]), report["checks"]
    assert len(printed.err.splitlines()) >= len(report["checks"]) + len(report["faults"]), "a line for every stage"
    return code, report, summary


def test_a_short_audit_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, report, _ = audited(["--speculative-draft-model-path", SMOLLM2], 6400, capsys)
    assert all(fault["caught"] for fault in report["faults"] if fault["name"] != NOISE), report["faults"]
    assert code == (0 if report["passed"] else 3)


@pytest.mark.thorough
def test_too_few_draws_are_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    code, report, summary = audited([], 3200, capsys)
    assert [fault["name"] for fault in report["faults"] if not fault["caught"]] == [NOISE]
    assert code == 3
    assert report["proof"] == "too weak"
    assert summary.startswith("Too weak: raise --draws to about ")
