"""The loop: it learns, it stops, it goes on where it was killed, and it says what is wrong."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from captured import TinyTarget, texts
from launched import environments
from rich.console import Console
from train_job import SHAPE, job, settings

from outrider import files
from outrider.errors import ConfigError, TrainingError
from outrider.train.evaluation.intervals import gain
from outrider.train.features.batches import Batch, held_out_batches
from outrider.train.loop import resume, training
from outrider.train.loop.precision import time_precisions
from outrider.train.loop.training import Trained, Training
from outrider.train.recipes.base import Acceptance, LossReport, Recipe
from outrider.train.report.curve import fit
from outrider.train.report.plot import picture
from outrider.train.report.record import Record
from outrider.train.settings import Settings

TESTS = Path(__file__).parents[1]


def run(folder: Path, method: str = "blockwise", console: Console | None = None, **options: object) -> Trained:
    return Training(job(method), settings(**options), folder, console=console).run()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "state.pt", weights_only=True)["head"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.mark.parametrize("method", ["blockwise", "medusa"])
def test_it_learns(method: str, tmp_path: Path) -> None:
    """The tiny target is random, so nothing can be learned but the texts themselves."""
    task = job(method)
    task = dataclasses.replace(task, held_out=held_out_batches(texts(24), SHAPE))
    trained = Training(task, settings(tokens=12_000, learning_rate=1e-2), tmp_path).run()
    judged = trained.findings.judged
    assert trained.findings.best.length > judged[0].length + 0.2
    assert trained.findings.losses[-1][1] < 0.8 * trained.findings.losses[0][1]
    assert len({judgement.tokens for judgement in judged}) >= 5


def test_it_is_a_function_of_its_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(hash(name) % 1000)  # the state the process happens to be in must not matter
        run(tmp_path / name, "medusa", seed=seed)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def program(folder: Path, kill_at: int, save_seconds: float = 0.0, **more: str) -> subprocess.Popen[bytes]:
    """The same training in a process of its own, killed as it asks for batch ``kill_at``; 0 lets it live."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(TESTS / "train_job.py"),
        str(folder),
        str(kill_at),
        str(save_seconds),
    ]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | more)


@pytest.mark.parametrize("save_seconds", [0.0, 0.05])
def test_killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path, save_seconds: float) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run(straight)
    assert program(broken, kill_at=17, save_seconds=save_seconds).wait(60) == -signal.SIGKILL
    assert not (broken / "summary.json").exists()
    if save_seconds == 0.0:
        assert torch.load(broken / "state.pt", weights_only=True)["progress"]["step"] == 16
    run(broken)
    assert same(weights(straight), weights(broken))
    for name in ("steps.csv", "held_out.csv"):
        timeless = [
            [{k: v for k, v in row.items() if not k.endswith("_s")} for row in rows(folder / name)]
            for folder in (straight, broken)
        ]
        assert timeless[0] == timeless[1]
    assert torch.equal(
        *(torch.load(at / "best.pt", weights_only=True)["head"]["widen.weight"] for at in (straight, broken))
    )


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    before = weights(tmp_path)
    second = run(tmp_path)
    assert same(before, weights(tmp_path))
    assert first.findings.judged == second.findings.judged


def test_another_training_in_the_folder_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(TrainingError, match=r"holds a training with --learning-rate 0.001, not 0.01; continue with"):
        run(tmp_path, learning_rate=0.01)


def test_a_state_says_nothing_of_what_it_is_older_than(tmp_path: Path) -> None:
    """What decides the batches must be the same, but a state from before that was written down is gone on with."""
    old, new = ({"rows of a batch": rows, "texts": "9 (ab)"} for rows in (96, 48))
    Training(dataclasses.replace(job(), facts={}), settings(), tmp_path).run()
    before = weights(tmp_path)
    Training(dataclasses.replace(job(), facts=old), settings(), tmp_path).run()
    assert same(before, weights(tmp_path))
    other = tmp_path / "other"
    Training(dataclasses.replace(job(), facts=old), settings(), other).run()
    with pytest.raises(TrainingError, match="holds a training with rows of a batch = 96, not 48"):
        Training(dataclasses.replace(job(), facts=new), settings(), other).run()


def test_weights_have_a_name() -> None:
    one, again = job().head, job().head
    assert resume.fingerprint(one.state_dict()) == resume.fingerprint(again.state_dict())
    with torch.no_grad():
        next(again.parameters()).view(-1)[-1] += 1e-3
    assert resume.fingerprint(one.state_dict()) != resume.fingerprint(again.state_dict())


def test_a_damaged_state_is_refused_and_a_partial_one_ignored(tmp_path: Path) -> None:
    (tmp_path / "state.pt.partial").write_bytes(b"half")
    run(tmp_path)
    (tmp_path / "state.pt").write_bytes((tmp_path / "state.pt").read_bytes()[:-500])
    with pytest.raises(TrainingError, match=r"state.pt is damaged .*; remove it to start again"):
        run(tmp_path)


def test_a_full_disk_stops_cleanly_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, full = tmp_path / "straight", tmp_path / "full"
    run(straight)
    saves = []

    def fsync(number: int) -> None:
        saves.append(number)
        if len(saves) == 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", fsync)
        with pytest.raises(TrainingError, match=r"the disk is full: .* run the same command again"):
            run(full, save_seconds=0.0)
    assert not list(full.glob("*.partial"))
    run(full)
    assert same(weights(straight), weights(full))


def test_two_workers_are_one_with_two_batches_a_step(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    together, alone = tmp_path / "together", tmp_path / "alone"
    started = [program(together, 0, **variables) for variables in environments(2)]
    assert [process.wait(120) for process in started] == [0, 0]
    run(alone, accumulate=2)
    for name, weight in weights(alone).items():
        torch.testing.assert_close(weights(together)[name], weight, rtol=1e-4, atol=1e-6)
    assert len(rows(together / "steps.csv")) == len(rows(alone / "steps.csv"))


@dataclasses.dataclass(frozen=True)
class Unlearning:
    recipe: Recipe
    method = "blockwise"

    def loss(self, head: torch.nn.Module, batch: Batch, teacher: object) -> LossReport:
        report = self.recipe.loss(head, batch, teacher)
        return LossReport(-report.loss, report.weight, report.parts)

    def acceptance(self, *arguments: object) -> object:
        return self.recipe.acceptance(*arguments)

    def calibrate(self, *arguments: object) -> Mapping[str, float]:
        return self.recipe.calibrate(*arguments)


@dataclasses.dataclass(frozen=True)
class Diverging(Unlearning):
    def loss(self, head: torch.nn.Module, batch: Batch, teacher: object) -> LossReport:
        report = self.recipe.loss(head, batch, teacher)
        return LossReport(report.loss * float("nan"), report.weight, report.parts)


def test_it_stops_early_and_keeps_the_best(tmp_path: Path) -> None:
    task = dataclasses.replace(job(), recipe=Unlearning(job().recipe))
    options = settings(tokens=100_000, judgements=40, patience=3, learning_rate=1e-2)
    trained = Training(task, options, tmp_path).run()
    found = trained.findings
    assert found.ended.startswith(
        "stopped early: the last 3 judgements were significantly worse than the best, the latest by -"
    )
    assert found.tokens < 100_000
    later = [gain(found.best.counts, judgement.counts) for judgement in found.judged[found.best_index + 1 :]]
    assert [change.high < 0 for change in later][-3:] == [True] * 3
    assert found.best.length == max(judgement.length for judgement in found.judged)
    kept = torch.load(tmp_path / "best.pt", weights_only=True)["head"]
    assert same(kept, trained.head.state_dict())
    assert not same(kept, weights(tmp_path))


def test_it_does_not_stop_for_a_worse_figure_that_may_be_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best judgement is followed by worse ones that lie within the interval of the difference."""
    found = iter([0.5, *[0.45] * 100])

    def judged(*arguments: object) -> Acceptance:
        rate = next(found)
        accepted = torch.tensor([[round(40 * rate) + 6 * (-1) ** text * (rate < 0.5)] for text in range(8)])
        return Acceptance(accepted, torch.full((8, 1), 40))

    monkeypatch.setattr(training, "evaluate", judged)
    trained = run(tmp_path, tokens=1200, judgements=12, patience=2).findings
    assert trained.best_index == 0
    assert trained.judged[-1].length < trained.best.length
    assert trained.ended == "trained on all 1,200 tokens"


def test_more_patience_goes_on_where_less_had_stopped(tmp_path: Path) -> None:
    task = dataclasses.replace(job(), recipe=Unlearning(job().recipe))
    options = {"tokens": 6000, "judgements": 20, "learning_rate": 1e-2}
    stopped = Training(task, settings(**options, patience=2), tmp_path / "one").run().findings
    assert stopped.ended.startswith("stopped early")
    for folder in ("one", "other"):  # the other never stopped
        again = dataclasses.replace(job(), recipe=Unlearning(job().recipe))
        trained = Training(again, settings(**options, patience=0), tmp_path / folder).run().findings
        assert trained.ended == "trained on all 6,000 tokens"
    assert same(weights(tmp_path / "one"), weights(tmp_path / "other"))


@pytest.mark.parametrize(
    "option", [{"judgements": 9}, {"save_seconds": 1.0}, {"precision": "auto"}, {"start_from": "x"}]
)
def test_what_decides_no_step_may_change(option: dict[str, object], tmp_path: Path) -> None:
    run(tmp_path)
    before = weights(tmp_path)
    run(tmp_path, **option)
    assert same(before, weights(tmp_path))


def test_another_precision_than_was_chosen_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(
        TrainingError, match=r"holds a training with --precision fp32, not bf16; continue with the same"
    ):
        run(tmp_path, precision="bf16")


def test_weights_of_other_shapes_are_refused_without_listing_them(tmp_path: Path) -> None:
    run(tmp_path)
    wider = dataclasses.replace(job(), head=job().recipe.head(TinyTarget(), torch.arange(32), seed=0))
    with pytest.raises(
        TrainingError, match="holds a training with other shapes of the weights; continue with"
    ) as refused:
        Training(wider, settings(), tmp_path).run()
    assert "{" not in str(refused.value)


def test_a_state_of_before_texts_were_judged_one_by_one_is_gone_on_with(tmp_path: Path) -> None:
    """As older versions wrote it: no counts by text, other options in the identity, no name of the best weights."""
    straight, older = tmp_path / "straight", tmp_path / "older"
    run(straight)
    assert program(older, kill_at=17).wait(60) == -signal.SIGKILL
    state = torch.load(older / "state.pt", weights_only=True)
    for name in ("best_weights", "worse"):
        del state["progress"][name]
    for judgement in state["progress"]["judged"]:
        del judgement["accepted_by_text"], judgement["tested_by_text"]
    state["identity"]["head's shapes"] = state["identity"].pop("shapes of the weights")
    state["identity"] |= {"patience": 3, "judgements": 6, "start_from": "", "precision": "auto"}
    torch.save(state, older / "state.pt")
    found = run(older).findings
    assert same(weights(straight), weights(older))
    assert found.outlook.law is None


@pytest.mark.parametrize("damage", ["gone", "other weights", "of an earlier judgement", "cut"])
def test_the_best_weights_must_be_those_of_the_state(damage: str, tmp_path: Path) -> None:
    run(tmp_path, tokens=6_000, learning_rate=1e-2)
    path = tmp_path / "best.pt"
    kept = torch.load(path, weights_only=True)
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    else:
        if damage == "other weights":
            kept["head"] = {name: weight + 1 for name, weight in kept["head"].items()}
        else:
            kept["judgement"] -= 1
        torch.save(kept, path)
    message = "best.pt is damaged" if damage == "cut" else "best.pt does not hold the best weights of the training in"
    with pytest.raises(TrainingError, match=message):
        run(tmp_path, tokens=6_000, learning_rate=1e-2)


def test_a_step_that_takes_too_much_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(Training, "_forward", full)
    with pytest.raises(TrainingError, match="a step needs more memory than cpu has; train with fewer --rows"):
        run(tmp_path)


def test_a_loss_that_is_no_number_stops_with_advice(tmp_path: Path) -> None:
    task = dataclasses.replace(job(), recipe=Diverging(job().recipe))
    with pytest.raises(
        TrainingError, match=r"loss of step 1 is not a finite number; .* lower --learning-rate than 0.001"
    ):
        Training(task, settings(), tmp_path).run()


def test_what_is_written_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "time_precisions", partial(time_precisions, seconds=0.1))
    out = io.StringIO()
    trained = run(tmp_path, console=Console(file=out, width=200), tokens=6_000, precision="auto", learning_rate=1e-2)
    text = out.getvalue()
    assert "precision: " in text
    assert "held-out τ" in text
    assert "trained on all 6,000 tokens" in text
    assert "tokens/s without judging" in text
    steps, judged = rows(tmp_path / "steps.csv"), rows(tmp_path / "held_out.csv")
    assert {"step", "tokens", "epoch", "learning_rate", "loss", "gradient", "loss_1", "loss_2", "data_s"} <= set(
        steps[0]
    )
    assert len(judged) == len(trained.findings.judged)
    assert float(judged[-1]["length"]) == trained.findings.judged[-1].length
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert sum(summary["shares"].values()) == pytest.approx(1)
    assert {"data", "forward", "backward", "judging"} <= set(summary["shares"])
    ElementTree.parse(tmp_path / "curve.svg")


def test_the_learning_rate_rises_and_falls() -> None:
    options = Settings(tokens=1000, learning_rate=2.0, warm_up=0.1)
    assert [options.rate_at(tokens) for tokens in (50, 100, 1000)] == pytest.approx([1.0, 2.0, 0.0])
    assert options.rate_at(550) == pytest.approx(1.0)
    assert options.rate_at(5000) == pytest.approx(0.0)
    assert Settings(tokens=10, warm_up=1.0).rate_at(10) == pytest.approx(1e-3)


def test_judgements_are_dense_at_first_and_even_later() -> None:
    points = Settings(tokens=64_000, judgements=8).evaluated_at()
    assert points == [8_000, 12_800, 16_000, 25_600, 32_000, 38_400, 51_200, 64_000]
    assert len(Settings(tokens=10**6).evaluated_at()) >= 8
    assert Settings(tokens=80, judgements=4).evaluated_at() == [10, 20, 40, 80]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp16"}, "precision must be one of auto, fp32, bf16, not 'fp16'"),
        ({"save_seconds": 120.0}, "save_seconds must be at least 0 and at most 60"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"warm_up": 2.0}, "warm_up must be at least 0 and at most 1"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**options)


@pytest.mark.parametrize(("limit", "scale", "power"), [(2.6, 35.0, 0.4), (3.1, 8.0, 0.15), (1.9, 300.0, 0.7)])
def test_the_law_is_found_again(limit: float, scale: float, power: float) -> None:
    points = [(n, limit - scale * n**-power) for n in (10_000, 30_000, 100_000, 300_000, 1_000_000)]
    law = fit([(0, 1.0), *points], most=8.0)
    assert law is not None
    assert law.error < 1e-3
    assert "at ten times" in str(law)
    assert law.bends
    assert law.at(3_000_000) == pytest.approx(limit - scale * 3_000_000**-power, abs=0.02)


def test_no_law_is_drawn_through_three_points_or_down() -> None:
    assert fit([(0, 1.0), (1, 1.0), (2, 1.5), (4, 1.7)]) is None
    assert fit([(1, 2.0), (2, 1.5), (4, 1.2), (8, 1.1)]) is None


def test_a_law_goes_no_higher_than_the_head_can() -> None:
    points = [(n, 1 + 0.3 * torch.log2(torch.tensor(n)).item()) for n in (2, 4, 8, 16, 32)]
    law = fit(points, most=5.0)
    assert law is not None
    assert law.limit <= 5.0
    unbounded = fit(points)
    assert unbounded is not None
    assert "has not begun to flatten" in str(unbounded)


def test_the_picture_holds_its_points() -> None:
    svg = picture([(n, 3.0 / n) for n in range(1, 1000)], [(0, 1.0), (10, 1.5), (999, 1.9)], None, "a < b")
    ElementTree.fromstring(svg)
    assert "10 tokens: τ 1.500" in svg
    assert "a &lt; b" in svg
    ElementTree.fromstring(picture([], [(0, 1.0)], None, "nothing yet"))


def test_the_faster_precision_wins() -> None:
    tried = []

    def step(precision: str) -> None:
        tried.append(precision)
        time.sleep(0.02 if precision == "bf16" else 0.002)

    found = time_precisions(step, seconds=0.1)
    assert found.fastest == "fp32"
    assert tried.count("bf16") >= 2
    assert str(found).startswith("precision: fp32 (a step takes: fp32 ")


def test_a_record_grows_columns_and_is_taken_back(tmp_path: Path) -> None:
    record = Record(tmp_path / "a.csv")
    record.add({"a": 1})
    record.add({"a": 2, "b": 3})
    record.add({"a": 4})
    assert rows(tmp_path / "a.csv") == [{"a": "1", "b": ""}, {"a": "2", "b": "3"}, {"a": "4", "b": ""}]
    again = Record(tmp_path / "a.csv", rows=2)
    again.add({"b": 5})
    assert rows(tmp_path / "a.csv")[1:] == [{"a": "2", "b": "3"}, {"a": "", "b": "5"}]
    assert again.rows == 3


def test_a_record_that_cannot_be_written_is_said_and_loses_nothing(tmp_path: Path) -> None:
    record = Record(tmp_path / "steps.csv")
    record.add({"tokens": 1, "loss": 2.0})
    (tmp_path / "steps.csv").rename(tmp_path / "kept.csv")
    (tmp_path / "steps.csv").mkdir()
    with pytest.raises(TrainingError, match=r"steps\.csv cannot be written .*free some space"):
        record.add({"tokens": 2, "loss": 1.0})
    assert (tmp_path / "kept.csv").read_text().splitlines() == ["tokens,loss", "1,2.0"]
