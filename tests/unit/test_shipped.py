"""Heads that come along: found by name and by their model's identity, and chosen unasked only where they pay."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gguf_files import TinyFile

from outrider.drafters import automatic_config
from outrider.errors import ModelError
from outrider.heads.loading import kind_of, read_head
from outrider.models import shipped_heads as shipped
from outrider.models.identity import identify
from outrider.models.loading import heads_beside
from outrider.models.shipped_heads import (
    MEASURED,
    TARGET,
    WORKLOADS,
    Measurement,
    ShippedHead,
    head_folder,
    shipped_heads,
)
from outrider.options import drafters_named

ROOT = Path(__file__).parents[2]
HEADS = ROOT / "assets" / "heads"


@pytest.fixture(autouse=True)
def looked_up_afresh() -> Iterator[None]:
    for cached in (shipped._folders, shipped._read):
        cached.cache_clear()
    yield
    for cached in (shipped._folders, shipped._read):
        cached.cache_clear()


def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_heads", ROOT / "scripts" / "record_heads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(**changes: Any) -> Measurement:
    usual = Measurement("code", 0.0, "10 of some.jsonl", 1.3, (1.2, 1.4), 1.1, "a CPU", "2026-11-30", "some.json")
    return dataclasses.replace(usual, **changes)


def everywhere(**changes: Any) -> tuple[Measurement, ...]:
    return tuple(measured(text=text, temperature=temperature, **changes) for text, temperature in WORKLOADS)


def put_head(folder: Path, model: Path, measurements: tuple[Measurement, ...]) -> Path:
    """A head for a model, with what was measured of it; its own weights are no matter here."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"outrider_head": 1, "kind": "eagle3"}))
    told = {"method": "lookup_model", "options": {"topk": 2}}
    told["measurements"] = [dataclasses.asdict(each) for each in measurements]
    (folder / MEASURED).write_text(json.dumps(told))
    identify(model).write(folder / TARGET)
    return folder


@pytest.mark.parametrize("name", sorted(path.parent.name for path in HEADS.glob("*/config.json")))
def test_the_record_of_a_head_is_what_the_results_say(name: str) -> None:
    told = json.loads((HEADS / name / MEASURED).read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(recorder().record(name))), "run scripts/record_heads.py"
    assert told["target"] == json.loads((HEADS / name / "config.json").read_text())["target"]["name"]


@pytest.mark.parametrize("head", shipped_heads(), ids=lambda head: head.name)
def test_auto_drafts_as_was_measured(head: ShippedHead) -> None:
    for named in (head.name, str(head.folder)):
        config = automatic_config([named])
        assert config.method == head.method
        assert drafters_named(config) == (named,)
        assert {name: getattr(config, name) for name in head.options} == head.options


def test_every_head_is_distributed() -> None:
    names = {head.name for head in shipped_heads()}
    project = tomllib.loads((HEADS / "pyproject.toml").read_text(encoding="utf-8"))
    packed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    notice = (HEADS / "NOTICE").read_text(encoding="utf-8")
    assert len(names) >= 3
    assert packed == {"__init__.py", *names} == {"__init__.py", *recorder().SOURCES}
    assert [name for name in names if name not in notice] == []


@pytest.mark.parametrize(
    ("measurements", "pays"),
    [
        (everywhere(), True),
        (everywhere(lookup=None), True),
        ((), False),
        (everywhere()[1:], False),
        (everywhere()[:-1], False),
        ((*everywhere(), measured(interval=(0.99, 1.4))), False),
        ((*everywhere(), measured(interval=(1.0, 1.4))), False),
        ((*everywhere(), measured(lookup=1.31)), False),
    ],
)
def test_it_pays_only_if_it_pays_wherever_it_is_asked(measurements: tuple[Measurement, ...], pays: bool) -> None:
    assert ShippedHead("some", Path("some"), measurements=measurements).pays is pays


def test_auto_takes_a_head_for_this_very_model_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyFile(quantization="Q4_1").write(tmp_path / "tiny.gguf")
    other = TinyFile(quantization="Q4_1", seed=1).write(tmp_path / "tuned.gguf")
    monkeypatch.setattr(shipped, "_CHECKOUT", tmp_path / "along")
    put_head(tmp_path / "along" / "losing", model, everywhere(interval=(0.9, 1.2)))
    assert heads_beside(model) == ()
    shipped._folders.cache_clear()
    pays = put_head(tmp_path / "along" / "paying", model, everywhere())
    put_head(tmp_path / "along" / "slower", model, everywhere(speedup=1.2))
    assert heads_beside(model) == (str(pays),)
    assert heads_beside(other) == (), "a head was taken for a model it was not made for"
    (tmp_path / "tiny.head").mkdir()
    (tmp_path / "tiny.head" / "config.json").write_text("{}")
    assert heads_beside(model) == (str(tmp_path / "tiny.head"),), "what lies beside the model goes first"


def test_a_name_is_as_good_as_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "smollm2-135m-eagle3"
    assert head_folder(name) == HEADS / name
    assert kind_of(name) == kind_of(HEADS / name) == "eagle3"
    assert read_head(name).name == name
    monkeypatch.chdir(tmp_path)
    put_head(tmp_path / name, TinyFile().write(tmp_path / "tiny.gguf"), ())
    assert head_folder(name) == Path(name), "a folder that is there goes first"


def test_a_name_that_is_none_is_said_with_those_there_are() -> None:
    with pytest.raises(ModelError, match=r"there is no head 'smollm3'.*smollm2-135m-eagle3"):
        read_head("smollm3")
    assert kind_of("smollm3") is None


def test_other_distributions_bring_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = TinyFile().write(tmp_path / "tiny.gguf")
    put_head(tmp_path / "heads" / "theirs", model, everywhere())
    (tmp_path / "more_heads.py").write_text(
        f"from pathlib import Path\n\ndef folder():\n    return Path({str(tmp_path / 'heads')!r})\n"
    )
    announced = tmp_path / "more_heads-1.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.4\nName: more-heads\nVersion: 1\n")
    (announced / "entry_points.txt").write_text(
        f"[{shipped.GROUP}]\nmore = more_heads:folder\nbroken = more_heads:absent\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        found = {head.name for head in shipped_heads()}
    assert {"theirs", "smollm2-135m-eagle3"} <= found
    assert "the heads of more-heads cannot be found" in caplog.text


def test_a_damaged_record_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyFile().write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(shipped, "_CHECKOUT", tmp_path / "along")
    folder = put_head(tmp_path / "along" / "some", model, everywhere())
    (folder / MEASURED).write_text("{")
    assert heads_beside(model) == ()
    assert [head.name for head in shipped_heads()] == ["some"], "it can still be named"
    shipped._read.cache_clear()
    put_head(tmp_path / "along" / "other", model, everywhere())
    (tmp_path / "along" / "other" / TARGET).unlink()
    assert heads_beside(model) == (), "nobody knows which model it is for"
