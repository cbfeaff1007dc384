"""Every command and snippet of the page on serving runs as written, against a server that its first command starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"
KEY = "the-admin-key"


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the server answers that the first block starts."""
    start, *_ = blocks("sh")
    program, *rest = shlex.split(start)
    assert program == "outrider"
    command = [sys.executable, "-m", program, *rest, "--port", "0"]
    environment = os.environ | {"OUTRIDER_ADMIN_KEY": KEY}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "Outrider ready:" in line:
                yield line.split("ready: ")[1].strip()
                break
        server.terminate()
        server.stderr.read()
        assert server.wait(60) == 0


def test_the_commands_run(address: str) -> None:
    _, *commands = blocks("sh")
    assert commands
    for command in commands:
        script = "set -e\n" + command.replace(ADDRESS, address).replace("curl ", "curl --fail --silent --noproxy '*' ")
        environment = os.environ | {"OUTRIDER_ADMIN_KEY": KEY}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_snippets_run(address: str) -> None:
    for snippet in blocks("python"):
        environment = os.environ | {"NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-c", snippet.replace(ADDRESS, address)],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "completion_tokens" in done.stdout
