"""``outrider train`` from prompts to a head that drafts, on a tiny model; and taken up again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launched import environments
from safetensors.torch import load_file
from tiny_folder import make_folder

from outrider import LLM, Speculation
from outrider.cli import main
from outrider.drafters.lookup_model import LookupModel

PROMPTS = 150
"""So many that some are held out: one in thirty-three is."""
SMALL = ["--tokens", "600", "--rows", "256", "--held-out", "8", "--precision", "fp32"]
REDUCED = ["--vocabulary", "128"]
SHORT = ["--answer-max-tokens", "10", "--patience", "0", "--judgements", "4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, prompts for it, and a folder of data that trainings share."""
    folder = tmp_path_factory.mktemp("training")
    make_folder(folder / "model")
    lines = [json.dumps({"prompt": f"say {number} and {number * number} aloud"}) for number in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def trained(
    place: Path, capsys: pytest.CaptureFixture[str], method: str, *options: str, output: str = "", data: str = "data"
) -> tuple[int, str, str]:
    words = ["train", method, "--model", str(place / "model"), "--data", str(place / "prompts.jsonl")]
    words += ["--output", str(place / (output or method)), "--data-folder", str(place / data)]
    words += [*SMALL, *SHORT, *options, "--json"]
    words += [] if {"--start-from", "--vocabulary"} & {*options} else REDUCED  # a head brings its own
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("eagle3", ("--steps", "2")),
        ("dspark", ("--slots", "3", "--blocks", "1", "--anchors", "4", "--rank", "8", "--weights", "d_pace")),
        ("medusa", ("--heads", "2")),
    ],
)
def test_a_head_is_trained_measured_and_drafts(
    method: str, options: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = trained(place, capsys, method, *options)
    assert code == 0, err
    result = json.loads(out)
    assert result["training"]["tokens"] >= 600
    assert result["training"]["judged"][-1]["length"] >= 1.0
    assert [row["method"] for row in result["bought"]] == ["none", "ngram", method]
    assert all(row["tokens_per_s"] > 0 for row in result["bought"])
    assert {"steps.csv", "held_out.csv", "curve.svg", "summary.json"} <= {
        file.name for file in (place / method / "training").iterdir()
    }
    texts = set()
    for drafts in ([], ["--speculative-draft-model-path", str(place / method)]):
        words = ["generate", "say 3 aloud", "--model", str(place / "model"), "--max-tokens", "12", "--json", *drafts]
        assert main(words) == 0
        done = json.loads(capsys.readouterr().out)
        texts.add(tuple(done["token_ids"]))
    assert done["speculation"]["algorithm"] == "lookup_model", "the folder did not say what it holds"
    assert len(texts) == 1


def test_a_head_beside_its_model_is_the_default(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(place, capsys, "eagle3", "--steps", "2")[0] == 0
    words = ["generate", "say 3 aloud", "--model", str(place / "model"), "--max-tokens", "12", "--json"]
    assert main(words) == 0
    without = json.loads(capsys.readouterr().out)
    beside = place / "model.head"
    shutil.copytree(place / "eagle3", beside)
    try:
        assert main(words) == 0
        done = json.loads(capsys.readouterr().out)
        assert LLM(place / "model").drafter_config == LookupModel(model=str(beside))
        assert LLM(place / "model", speculation=Speculation("ngram")).drafter_config.method == "ngram"
    finally:
        shutil.rmtree(beside)
    assert (without["speculation"]["algorithm"], done["speculation"]["algorithm"]) == ("suffix", "lookup_model")
    assert done["token_ids"] == without["token_ids"]


def test_the_same_command_again_has_nothing_left_to_do(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trained(place, capsys, "blockwise", "--heads", "2")
    assert first[0] == 0, first[2]
    weights = (place / "blockwise" / "model.safetensors").read_bytes()
    code, out, err = trained(place, capsys, "blockwise", "--heads", "2")
    assert code == 0, err
    assert "answers: 0 to make" in err
    assert len(re.findall("0 computed now", err)) == 2
    assert json.loads(out)["training"] == json.loads(first[1])["training"]
    assert (place / "blockwise" / "model.safetensors").read_bytes() == weights
    (place / "more.jsonl").write_text("".join(json.dumps({"prompt": f"and {n}?"}) + "\n" for n in range(40)))
    code, _, err = trained(place, capsys, "blockwise", "--heads", "2", "--data", str(place / "more.jsonl"))
    assert code == 2, "went on with other texts"
    assert "holds a training on the earlier texts, and now there are 4" in err
    assert "to answer; give another --output with --data-folder" in err
    code, _, err = trained(place, capsys, "blockwise", "--heads", "2", "--max-length", "64")
    assert code == 2, "went on with other batches"
    assert "holds a training with longest text = 512, not 64" in err
    code, _, err = trained(place, capsys, "blockwise", "--heads", "2", "--vocabulary", "64")
    assert code == 2, "went on with another draft vocabulary"
    assert "holds a training with draft vocabulary = 128, not 64" in err


def test_answering_while_training_keeps_few_answers_and_drafts_all_the_same(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.train.training_data._FIRST", 20)
    code, out, err = trained(place, capsys, "medusa", "--heads", "2", "--online", output="on", data="little")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["training"]["tokens"] >= 600
    assert re.search(r"stored for [1-9]\d* held-out texts, 0 computed now", err), "rows were computed twice"
    assert "training texts, " not in err, "what should be answered anew was read from a buffer"
    kept = [json.loads(line) for line in (place / "little" / "answers.jsonl").read_text().splitlines()[1:]]
    assert len([line for line in kept if not line["validation"]]) == 20
    assert 0 < len([line for line in kept if line["validation"]]) < PROMPTS // 5
    assert list((place / "little").glob("hidden-*/held_out/*.safetensors"))
    assert not list((place / "little").glob("hidden-*/train/*.safetensors")), "rows were kept that nobody reads"


def test_training_goes_on_from_a_head_that_was_trained_before(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = trained(place, capsys, "eagle", output="begun")
    assert first[0] == 0, first[2]
    before = json.loads(first[1].splitlines()[-1])["training"]
    code, out, err = trained(place, capsys, "eagle", "--start-from", str(place / "begun"), output="gone-on")
    assert code == 0, err
    assert "draft vocabulary:" in first[2]
    assert "draft vocabulary:" not in err, "a vocabulary was told that is not the head's"
    after = json.loads(out.splitlines()[-1])["training"]
    assert after["judged"][0]["tokens"] == 0
    assert after["judged"][0]["accepted"] == before["best"]["accepted"], "it did not begin where the other ended"
    code, _, err = trained(place, capsys, "medusa", "--start-from", str(place / "begun"), output="other")
    assert code == 2
    assert "is a head of kind eagle, but medusa trains kind medusa" in err
    code, _, err = trained(place, capsys, "eagle", "--start-from", str(place / "begun"), "--inner", "64", data="fresh")
    assert code == 2
    assert "with inner 96, but this training uses 64; give --inner 96" in err
    assert not (place / "fresh").exists(), "prompts were answered first"


def test_answers_of_another_target_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(place, capsys, "medusa", "--heads", "2", data="theirs")[0] == 0
    shutil.copytree(place / "model", place / "another")
    words = ["train", "medusa", "--model", str(place / "another"), "--output", str(place / "not-ours"), *SMALL]
    words += ["--heads", "2", "--data-folder", str(place / "theirs")]
    assert main(words) == 2
    assert "were made with target 'model', not 'another'" in capsys.readouterr().err
    (place / "theirs" / "answers.jsonl").unlink()
    assert main([*words, "--data", str(place / "prompts.jsonl")]) == 2
    assert "was made with target 'model', not 'another'" in capsys.readouterr().err, "their rows were taken"


def test_too_few_prompts_to_judge_by_are_refused_before_any_is_answered(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "few.jsonl").write_text(json.dumps({"prompt": "say 1 aloud"}) + "\n")
    words = ["train", "medusa", "--model", str(place / "model"), "--data", str(place / "few.jsonl"), *SMALL, *SHORT]
    assert main([*words, "--output", str(place / "nothing")]) == 2
    assert "none of 1 prompts is held out to judge by" in capsys.readouterr().err
    assert not (place / "nothing" / "data" / "answers.jsonl").exists()


def test_two_processes_answer_once_and_train_one_head(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first gathers and writes while the other waits; the head is that of one process with two batches a step."""
    pytest.importorskip("accelerate")
    words = ["train", "medusa", "--model", str(place / "model"), "--data", str(place / "prompts.jsonl"), *SMALL, *SHORT]
    words += ["--heads", "2", "--data-folder", str(place / "shared"), "--output", str(place / "together"), "--json"]
    words += REDUCED
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "outrider", *words], env=os.environ | path | variables, stdout=subprocess.PIPE
        )
        for variables in environments(2)
    ]
    first, second = (process.communicate(timeout=240)[0].decode() for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert second == "", "the second process told what the first one tells"
    keys = [json.loads(line)["key"] for line in (place / "shared" / "answers.jsonl").read_text().splitlines()[1:]]
    assert len(keys) == len(set(keys)) > 0, "prompts were answered by both"
    assert json.loads(first.splitlines()[-1])["training"]["tokens"] >= 600
    assert trained(place, capsys, "medusa", "--heads", "2", "--accumulate", "2", output="alone", data="shared")[0] == 0
    alone, together = (load_file(place / name / "model.safetensors") for name in ("alone", "together"))
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=1e-3, atol=1e-5)


def test_several_processes_that_would_answer_the_same_prompts_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.train.loop.workers.workers", lambda: SimpleNamespace(rank=0, count=4))
    code, _, err = trained(place, capsys, "medusa", "--online")
    assert code == 2
    assert "--online works in one process, not 4: leave it out" in err


def test_what_cannot_be_trained_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(place, capsys, "ngram")[0] == 2
    code, _, err = trained(place, capsys, "medusa", "--slots", "3")
    assert code == 2
    assert "--slots is not an option of medusa" in err
