"""What can be known to fail is said before any work: nothing is made, answered or written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from train_commands import METHOD, make_place, words

from outrider.cli import main
from outrider.errors import ConfigError
from outrider.train import checks
from outrider.train.loop.workers import locked


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, prompts for it, and the head of a training that has ended."""
    folder = make_place(tmp_path_factory.mktemp("checks"))
    prompts = (folder / "prompts.jsonl").read_text()
    (folder / "more.jsonl").write_text(prompts + json.dumps({"prompt": "and one more?"}) + "\n")
    command = words(folder, "--data", str(folder / "prompts.jsonl"), "--output", str(folder / "done"))
    assert main([*command, "--answer-max-tokens", "10", "--patience", "0"]) == 0
    return folder


class Refusal(NamedTuple):
    """A command that must fail at once."""

    options: list[str]
    message: str
    method: list[str] = METHOD


REFUSALS = {
    "no texts": Refusal([], "there is nothing to train on: {new}/data has no answers; name prompts with --data FILE"),
    "too few prompts": Refusal(["--synthesise", "40"], "gives too few held-out texts, about 1.2, because 3 in 100"),
    "other answers": Refusal(
        ["--data-folder", "{place}/done/data", "--data", "{prompts}", "--answer-max-tokens", "7"],
        "were made with --answer-max-tokens 10, not 7; give --answer-max-tokens 10, or another --data-folder",
    ),
    "less than none": Refusal(["--synthesise", "-5", "--data", "{prompts}"], "--synthesise must be 0 or more, not -5"),
    "hardly enough": Refusal(["--synthesise", "99"], "ask for 100 or more"),
    "no file": Refusal(["--data", "{place}/none.jsonl"], "none.jsonl cannot be read"),
    "no file beside synthesis": Refusal(["--data", "{place}/none.jsonl", "--synthesise", "200"], "cannot be read"),
    "unknown option": Refusal(["--josn"], "there is no option --josn"),
    "of another method": Refusal(["--slots", "3", "--synthesise", "200"], "--slots is not an option of medusa"),
    "prompts' option": Refusal(
        ["--prompt-seed", "1", "--data", "{prompts}"], "--prompt-seed has an effect only with --synthesise N"
    ),
    "answers' option": Refusal(
        ["--answer-seed", "1", "--data-folder", "{place}/done/data"],
        "--answer-seed has an effect only with --data or --synthesise N",
    ),
    "output is a file": Refusal(
        ["--output", "{prompts}/x", "--data", "{prompts}"], "is a file; name another folder with --output"
    ),
    "data folder is a file": Refusal(
        ["--data-folder", "{prompts}", "--data", "{prompts}"], "another folder with --data-folder"
    ),
    "output is the start": Refusal(
        ["--output", "{place}/done", "--start-from", "{place}/done", "--data", "{prompts}"],
        "--output would overwrite {place}/done, the head to start from",
        ["medusa", "--heads", "2"],
    ),
    "two vocabularies": Refusal(
        ["--start-from", "{place}/done", "--data", "{prompts}"], "because a head keeps its draft vocabulary"
    ),
    "another head": Refusal(
        ["--start-from", "{place}/done", "--data", "{prompts}"],
        "with heads 2, but this training uses 3; give --heads 2",
        ["medusa", "--heads", "3"],
    ),
    "other texts": Refusal(
        ["--output", "{place}/done", "--data", "{place}/more.jsonl", "--answer-max-tokens", "10"],
        "now there are 1 to answer; give another --output with --data-folder {place}/done/data, and --start-from",
    ),
    "grown prompts": Refusal(
        ["--output", "{place}/done", "--data", "{prompts}", "--synthesise", "200", "--answer-max-tokens", "10"],
        "now there are 200 prompts to make; give another --output",
    ),
    "more tokens": Refusal(
        ["--output", "{place}/done", "--data", "{prompts}", "--answer-max-tokens", "10", "--tokens", "500"],
        "holds a training with --tokens 300, not 500; the learning rate schedule depends on them, so none can be added",
    ),
    "another seed": Refusal(
        ["--output", "{place}/done", "--data", "{prompts}", "--answer-max-tokens", "10", "--seed", "4"],
        "holds a training with --seed 0, not 4; continue with the same options, or choose another folder with --output",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_said_before_any_work(name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, new = REFUSALS[name], tmp_path / "new"
    known = {"place": str(place), "new": str(new), "prompts": str(place / "prompts.jsonl")}
    options = [option.format(**known) for option in case.options]
    options += [] if "--output" in options else ["--output", str(new)]
    before = sorted(place.rglob("*"))
    assert main(words(place, *options, method=case.method)) == 2
    err = capsys.readouterr().err
    assert case.message.format(**known) in err
    assert err.count("\n") == 1, "more than one line"
    assert not new.exists(), "something was begun"
    assert sorted(place.rglob("*")) == before


def test_a_model_that_no_training_made_is_not_written_over(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = words(place, "--data", str(place / "prompts.jsonl"), "--output", str(tmp_path))
    assert main(command) == 2
    assert "holds a model that was not trained there" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_vocabulary_too_small_for_the_ends_of_a_text_is_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    for file in ("config.json", "generation_config.json"):
        path = tmp_path / "model" / file
        told = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(told | {"eos_token_id": [1, 2, 3]}))
    method = ["medusa", "--heads", "2", "--vocabulary", "2"]
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(tmp_path / "new")]
    assert main(words(tmp_path, *options, method=method)) == 2
    assert "--vocabulary 2 is too small: " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_disk_without_room_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = words(place, "--data", str(place / "prompts.jsonl"), "--output", str(tmp_path / "new"))
    with monkeypatch.context() as patch:
        patch.setattr(checks, "_free", lambda folder: 1000)
        assert main(command) == 2
    assert "0 MB are free for " in capsys.readouterr().err
    assert not (tmp_path / "new" / "data" / "answers.jsonl").exists()


def test_what_is_not_said_of_prompts_and_answers_is_as_it_was(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of texts is shared without repeating the options it was made with."""
    made = ["--synthesise", "120", "--prompt-sampled-share", "0", "--prompt-seed", "3", "--answer-max-tokens", "10"]
    options = ["--data-folder", str(tmp_path / "data"), "--patience", "0"]
    assert main(words(place, *options, *made, "--output", str(tmp_path / "one"))) == 0
    for name, more in (("two", []), ("three", ["--synthesise", "140"])):
        capsys.readouterr()
        assert main(words(place, *options, *more, "--output", str(tmp_path / name))) == 0, capsys.readouterr().err
        told = f"as before in {tmp_path / 'data'}: --prompt-sampled-share 0.0 --prompt-seed 3 --answer-max-tokens 10\n"
        assert told in capsys.readouterr().out
    once = ["--data-folder", str(tmp_path / "once"), *made, "--synthesise", "140", "--output", str(tmp_path / "four")]
    del once[once.index("--synthesise") : once.index("--synthesise") + 2]
    assert main(words(place, *once, "--patience", "0")) == 0
    files = [(tmp_path / name / "prompts.jsonl").read_bytes() for name in ("data", "once")]
    assert files[0] == files[1]


def test_a_lost_data_folder_is_made_again_and_the_training_goes_on(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(place / "done"), "--answer-max-tokens", "10"]
    again = [*options, "--patience", "0", "--data-folder", str(tmp_path / "again")]
    weights = (place / "done" / "model.safetensors").read_bytes()
    assert main(words(place, *again)) == 0, capsys.readouterr().err
    assert (place / "done" / "model.safetensors").read_bytes() == weights


def test_no_more_texts_are_answered_to_judge_by_than_are_asked_for(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 150 prompts five are kept: two are judged by, and their prompts are what the speed is measured on."""
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(tmp_path), "--answer-max-tokens", "10", "--json"]
    options += ["--patience", "0"]
    assert main(words(place, *options, "--held-out", "2")) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["training"]["held_out_texts"] == 2
    assert "and 2 held out" in captured.err
    assert "2 held-out prompts, greedy" in captured.err
    lines = [json.loads(line) for line in (tmp_path / "data" / "answers.jsonl").read_text().splitlines()[1:]]
    assert len([line for line in lines if line["validation"]]) == 2
    options[options.index(str(tmp_path))] = str(tmp_path / "four")
    assert main(words(place, *options, "--held-out", "4", "--data-folder", str(tmp_path / "data"))) == 0
    captured = capsys.readouterr()
    assert "answers: 2 made" in captured.err
    assert json.loads(captured.out)["training"]["held_out_texts"] == 4


def test_texts_that_cannot_be_judged_do_not_take_the_place_of_others(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts as long as texts are cut leave nothing to judge: the shorter ones that follow are taken."""
    prompts = [json.loads(line) for line in (place / "prompts.jsonl").read_text().splitlines()]
    long = [{"prompt": f"{number} " + "and so on " * 60} for number in range(150)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (*long, *prompts)))
    options = ["--data", str(tmp_path / "mixed.jsonl"), "--output", str(tmp_path / "out"), "--answer-max-tokens", "10"]
    assert main(words(place, *options, "--max-length", "100", "--patience", "0", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["training"]["held_out_texts"] == 4


def test_prompts_that_leave_no_room_for_an_answer_are_refused_before_any_is_answered(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(tmp_path)]
    assert main(words(place, *options, "--max-length", "3")) == 2
    assert "to judge by has fewer than 3 tokens, so no answer could be judged" in capsys.readouterr().err
    assert not (tmp_path / "data" / "answers.jsonl").exists()


HOLDER = """
import sys, time
from pathlib import Path
from outrider.train.loop.workers import locked
with locked(Path(sys.argv[1]), "training", "--output"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(("folder", "flag"), [("data", "--data-folder"), ("training", "--output")])
def test_two_trainings_in_one_folder_are_kept_apart(
    folder: str, flag: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        command = words(place, "--data", str(place / "prompts.jsonl"), "--output", str(tmp_path))
        assert main(command) == 2
        err = capsys.readouterr().err
        assert f"in {tmp_path / folder}; wait until it ends, or name another folder with {flag}" in err
        assert not (tmp_path / "data" / "answers.jsonl").exists()
    finally:
        other.kill()
        other.communicate()
    with locked(tmp_path / folder, "training", flag):  # whoever was killed holds nothing
        pass


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"file cannot be used: .*; name another with --output"),
        locked(tmp_path / "file", "training", "--output"),
    ):
        pass
