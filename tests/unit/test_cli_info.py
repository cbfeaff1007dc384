"""``outrider info`` and ``outrider models``: at once, and whatever becomes of the output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run
from tiny_folder import make_folder

from outrider.bench.machine import quick_facts
from outrider.cli.method_options import all_options, spellings
from outrider.drafters import methods
from outrider.kernels.native import cpu
from outrider.models.backends import backends
from outrider.verify import registered


def test_broken_pipe_is_silent() -> None:
    script = "import sys; from outrider.cli import main; sys.exit(main(['info', '--json']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        err = child.stderr.read().decode()
    assert (child.returncode, err) == (141, "")


def test_models_lists_good_and_bad(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_MODELS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "no models yet" in run(capsys, "models")[1]
    make_folder(tmp_path / "tiny")
    (tmp_path / "bad.gguf").write_bytes(b"GGUFnot")
    code, out, _ = run(capsys, "models", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)["models"]}
    assert code == 0
    assert found["tiny"]["architecture"] == "llama"
    assert found["tiny"]["file_bytes"] > 0
    assert "bad.gguf" in found["bad"]["problem"]
    assert "tiny" in run(capsys, "models")[1]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_name_is_never_cut(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("OUTRIDER_MODELS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    names = ["tiny", "a-model-whose-name-takes-a-good-many-columns.Q4_K_M"]
    for name in names:
        make_folder(tmp_path / name)
    (tmp_path / "bad.gguf").write_bytes(b"GGUFnot")
    out = re.sub(r"\x1b\[[0-9;]*m", "", run(capsys, "models")[1])
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= columns
    assert {*names, "bad", "llama", "folder", "–"} <= {word.rstrip(",") for line in lines for word in line.split()}
    assert ("name" in out.split()) == (columns == 200)


def test_info_names_every_method_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(run(capsys, "info", "--json")[1])
    assert set(facts["drafters"]) == set(methods())
    assert facts["verifiers"]["coupled"]["exact_for_trees"]
    assert facts["machine"]["versions"]["torch"]
    text = run(capsys, "info", "--methods")[1]
    for flag in all_options():
        assert all(spelling in text for spelling in spellings(flag))
    for rule in registered():
        assert rule in text


def test_info_is_nine_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(capsys, "info")[1]
    told = dict(line.split(maxsplit=1) for line in text.splitlines())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("outrider.cli.info.quick_facts", lambda: quick_facts() | {"cpu": "An Ordinary CPU"})
    narrow = run(capsys, "info")[1]
    assert narrow.count("\n") <= 9
    assert narrow.split() == run(capsys, "info")[1].split()
    assert [line for line in narrow.splitlines() if len(line) > 80 and not line.startswith("models in")] == []
    assert told["kernels"].split()[0] == (cpu.kernel_name() if cpu else "none:")
    assert set(told["backends"].split(", ")) <= set(backends())
    assert "torch" in told["versions"]


@pytest.mark.parametrize("words", [["info"], ["models"], ["--help"], ["--version"]], ids=" ".join)
def test_what_is_asked_at_once_imports_no_torch(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "tiny")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    monkeypatch.setenv("OUTRIDER_MODELS", str(tmp_path))
    check = f"import sys; from outrider.cli import main; print(main({words!r}))\n"
    check += "sys.exit(', '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n0\n")


@pytest.mark.parametrize("words", [["generate", "--help"], ["chat", "--frob"], ["bench", "--help"]], ids=" ".join)
def test_help_and_bad_flags_import_no_transformers(words: list[str]) -> None:
    check = f"import sys; from outrider.cli import main; main({words!r}); sys.exit('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
