"""The files for running the server as a service are sound, as their own tools see them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_dockerfile_passes_its_linter() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    text = (DEPLOY / "outrider.service").read_text(encoding="utf-8")
    command = "/opt/outrider/bin/outrider"
    assert text.count(command) == 1
    unit = tmp_path / "outrider.service"
    unit.write_text(text.replace(command, shutil.which("true") or ""), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "outrider.service" not in done.stderr, done.stderr


def test_the_unit_waits_longer_than_the_server_drains() -> None:
    from outrider.server.settings import ServerSettings

    text = (DEPLOY / "outrider.service").read_text(encoding="utf-8")
    seconds = int(text.split("TimeoutStopSec=")[1].split()[0])
    assert seconds > ServerSettings().drain_seconds
