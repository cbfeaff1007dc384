"""What a training says in the end, in words and for machines; and what a person sees while it goes on."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rich.console import Console
from train_commands import make_place, words

from outrider.cli import main
from outrider.train.bars import bar
from outrider.train.data.example import Example
from outrider.train.evaluation.held_out import Evaluation
from outrider.train.features.vocabulary import DraftVocabulary
from outrider.train.report.findings import Findings
from outrider.train.report.outcome import TrainingOutcome
from outrider.train.report.record import Stopwatch
from outrider.train.training_data import Texts

PLAIN = {"method": "none", "accepted_length": 1.0, "speedup": 1.0}
NGRAM = {"method": "ngram", "accepted_length": 1.4, "speedup": 1.3}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("outcome"))


def outcome(
    speedup: float, *, texts: int = 40, rising: bool = True, tokens: int = 16_000, covered: int = 100
) -> TrainingOutcome:
    judged = []
    for step in range(5):
        accepted = tuple((10 + 6 * step * rising + text % 3,) for text in range(texts))
        tested = ((40,),) * texts
        total, length = sum(row[0] for row in accepted), 1 + sum(row[0] for row in accepted) / (40 * texts)
        judged.append(Evaluation(step, tokens * 2**step // 16, length, (total,), (40 * texts,), accepted, tested))
    findings = Findings("medusa", "all", 9, "fp32", judged, 4, [(tokens, 1.0)], Stopwatch(torch.device("cpu")))
    example = Example(list(range(101)), 1)
    head = {"method": "medusa", "accepted_length": 1.2, "speedup": speedup}
    return TrainingOutcome(
        model="my model",
        method="medusa",
        output=Path("heads/of mine"),
        findings=findings,
        texts=Texts([example] * 40, [example] * texts),
        vocabulary=DraftVocabulary(torch.arange(9), covered, 100),
        payoff=[PLAIN, NGRAM, head],
    )


def test_the_end_says_what_was_trained_how_good_it_is_and_how_to_use_it() -> None:
    text = "\n".join(outcome(1.5).lines())
    assert "Trained: medusa for my model on 16,000 answer tokens (4.0 passes over 40 texts), in 'heads/of mine'" in text
    assert "Held out: τ 1.87 (1.87 to 1.88), α by position 0.87 (0.87 to 0.88); 95 % intervals over 40 texts" in text
    assert "Speed here: 1.50× plain decoding at τ 1.20, ngram 1.30×" in text
    command = "outrider generate \"…\" --model 'my model' --draft-model 'heads/of mine'"
    assert f"Use it: {command}" in text
    assert "more --tokens; the curve has τ " in text
    assert "more prompts (--synthesise, --data), because each text was read 4.0 times" in text
    assert "costs more than it saves" not in text
    assert "--vocabulary" not in text


def test_it_says_what_is_not_good_and_what_cannot_be_told() -> None:
    text = "\n".join(outcome(0.8, texts=3, rising=False, tokens=4000, covered=90).lines())
    assert "0.80× plain decoding at τ 1.20, ngram 1.30×; drafting costs more than it saves at this acceptance" in text
    assert "3 texts are too few for an interval" in text
    assert "the gain is unknown: too few held-out texts to extrapolate" in text
    assert "a larger --vocabulary: 9 tokens cover 90.0% of the answers" in text
    assert "more prompts, which narrow the intervals too: 3 in 100 are held out" in text
    assert "because each text was read" not in text
    flat = "\n".join(outcome(0.8, rising=False).lines())
    assert "too flat to extrapolate: from 8,000 to 16,000 tokens τ changed by +0.000" in flat


def test_the_summary_holds_the_last_table_and_machines_get_the_same(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(tmp_path), "--answer-max-tokens", "10", "--json"]
    assert main(words(place, *options)) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    summary = json.loads((tmp_path / "training" / "summary.json").read_text())
    assert [row["method"] for row in summary["bought"]] == ["none", "ngram", "medusa"]
    assert summary["bought"] == printed["bought"]
    assert summary == printed["training"] | {name: value for name, value in printed.items() if name != "training"}
    best = summary["best"]
    assert best["length_interval"][0] <= best["length"] <= best["length_interval"][1]
    assert len(best["rates"]) == len(best["rate_intervals"]) == 2
    assert (summary["texts"], summary["held_out_texts"]) == (145, 4)
    for name in ("Trained: ", "Held out: ", "Speed here: ", "Use it: ", "To raise it: "):
        assert captured.err.count(f"\n{name}") >= 1
    documented = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    missing = [name for name in summary if f"`{name}`" not in documented]
    assert missing == [], "fields that docs/training.md does not tell"


def test_a_pipe_gets_a_line_for_what_begins_and_nothing_of_bars() -> None:
    file = io.StringIO()
    with bar("answering prompts", 3, Console(file=file)) as tick:
        for done in range(3):
            tick(done + 1, "5 tokens/s")
    assert file.getvalue() == "answering prompts: 3 …\n"
    with bar("answering prompts", 0, Console(file=file)):
        pass
    assert file.getvalue().count("\n") == 1, "nothing was to be done"
    with bar("answering prompts", 3, Console(file=file, quiet=True)), bar("answering prompts", 3, None):
        pass
    assert file.getvalue().count("\n") == 1


def test_a_terminal_gets_bars_that_name_the_work_and_leave_nothing_behind() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with bar("answering prompts", 3, console) as tick:
        tick(2, "5 tokens/s")
        console.print("a line above it")
    assert "answering prompts" in file.getvalue()
    assert "a line above it" in file.getvalue()
    assert file.getvalue().rstrip().endswith("\x1b[2K"), "the bar was left on the screen"


def run_on(place: Path, output: Path, *, stdout_on_terminal: bool) -> tuple[str, str]:
    """The command with standard error on a terminal: what the terminal showed, and what came through the pipe."""
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(output), "--answer-max-tokens", "10"]
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "outrider", *words(place, *options)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "120"},
        stdout=slave if stdout_on_terminal else subprocess.PIPE,
        stderr=slave,
        text=True,
    )
    os.close(slave)
    with ThreadPoolExecutor(1) as beside:
        shown = beside.submit(drained, master)
        piped = process.communicate(timeout=240)[0] or ""
    os.close(master)
    assert process.returncode == 0
    return shown.result().decode(errors="replace"), piped


def drained(terminal: int) -> bytes:
    """Everything that is shown until nobody writes to a terminal any more."""
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            part = b""
        if not part:
            return shown
        shown += part


def test_bars_go_to_the_terminal_and_lines_to_the_pipe(place: Path, tmp_path: Path) -> None:
    shown, piped = run_on(place, tmp_path / "piped", stdout_on_terminal=False)
    assert "answering prompts" in shown
    assert "Trained: " not in shown
    assert "\x1b" not in piped
    assert "answers: " in piped
    assert "Trained: " in piped
    shown, _ = run_on(place, tmp_path / "shown", stdout_on_terminal=True)
    for text in ("answering prompts", "training", "measuring speed", "Trained: "):
        assert text in shown


def test_warnings_of_libraries_stay_off_the_screen(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(*arguments: object, **options: object) -> str:
        warnings.warn("Mismatch dtype between input and weight", UserWarning, stacklevel=1)
        return ""

    monkeypatch.setattr("outrider.train.training_data.Texts.__str__", warned)
    monkeypatch.setattr(sys, "warnoptions", [])
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(tmp_path), "--answer-max-tokens", "10"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what pytest would otherwise record
        assert main(words(place, *options)) == 0
    assert "Warning" not in "".join(capsys.readouterr())


def test_a_training_that_is_stopped_says_how_to_go_on(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider.train.loop.training.Training._step", stopped)
    options = ["--data", str(place / "prompts.jsonl"), "--output", str(tmp_path), "--answer-max-tokens", "10"]
    assert main(words(place, *options)) == 130
    assert "stopped; run the same command to continue" in capsys.readouterr().out
