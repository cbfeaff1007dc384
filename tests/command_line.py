"""The command line, in process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def completed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What ``generate --json`` prints."""
    code, out, err = run(capsys, "generate", *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])
