"""The profile of passes: measured once, kept on disk, and made again where model or machine differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import tiny_model, tiny_native

from outrider.engine import profile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(profile.VARIABLE, str(tmp_path / "profiles"))
    return tmp_path / "profiles"


def test_all_rows_are_measured() -> None:
    target = tiny_native(0)
    found = profile.measured(target)
    assert list(found) == [rows for rows in profile.ROWS if rows in found]
    assert {1, 8, 16} <= found.keys()
    assert min(found.values()) > 0


def test_without_time_only_small_passes_are_measured() -> None:
    assert max(profile.measured(tiny_native(0), seconds=0.0)) == 16


def test_a_profile_is_read_again_and_a_damaged_one_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, weights = tiny_native(0), folder.parent / "model.gguf"
    weights.touch()
    monkeypatch.setattr(target, "source", weights)
    first = profile.pass_profile(target)
    monkeypatch.setattr(profile, "measured", lambda target: {1: 7.0})
    assert profile.pass_profile(target) == first
    (file,) = folder.iterdir()
    file.write_text("{", encoding="utf-8")
    assert profile.pass_profile(target) == {1: 7.0} == {1: json.loads(file.read_text())["1"]}
    monkeypatch.setattr(target, "packed_bytes", target.packed_bytes + 1)
    profile.pass_profile(target)
    assert len(list(folder.iterdir())) == 2


def test_a_model_in_memory_leaves_nothing_behind(folder: Path) -> None:
    assert profile.pass_profile(tiny_native(0))
    assert not folder.exists()


def test_elsewhere_costs_are_learned_from_rounds() -> None:
    assert profile.pass_profile(tiny_model(0)) is None
