"""A short audit of a real model: every check passes and every planted fault is caught.

Run with `pytest -m real tests/real/test_audit_real.py`; it is skipped where the model is not in the models folder.
"""

from __future__ import annotations

import json

import pytest

from outrider.cli import main
from outrider.target.loading import models_folder

pytestmark = pytest.mark.real

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("method", [[], ["--speculative-draft-model-path", SMOLLM2]], ids=["lookup", "draft model"])
def test_a_short_audit_passes(method: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if not (models_folder() / SMOLLM2).is_file():
        pytest.skip(f"{SMOLLM2} is not in the models folder")
    method = [str(models_folder() / SMOLLM2) if item == SMOLLM2 else item for item in method]
    short = ["--max-tokens", "16", "--draws", "6400", "--workers", "0", "--json"]
    code = main(["audit", "--model", str(models_folder() / SMOLLM2), *method, *short])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(check["passed"] for check in report["checks"]), report["checks"]
    caught = {fault["name"]: fault["caught"] for fault in report["faults"]}
    del caught["reused noise"]  # shows for sure only after more draws than these
    assert all(caught.values()), report["faults"]
    assert code == (0 if report["passed"] else 1)
