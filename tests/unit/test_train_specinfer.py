"""Draft models that complement each other: each learns what those before it miss, and all are run as one tree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from captured import LAYERS, InMemory, TinyTarget, teacher, texts
from cut_target import target_with_files, training

from outrider.cli import main
from outrider.drafters.specinfer import SpecInfer, members_in
from outrider.train.features.batches import Batch, Batches, BatchShape, held_out_batches
from outrider.train.loop.training import Task, Training
from outrider.train.recipes._distillation import agrees_with_target
from outrider.train.recipes._small_decoder import SmallDecoder
from outrider.train.recipes.base import Recipe, drafted_acceptance, recipe_class
from outrider.train.settings import Settings

SHAPE = BatchShape(layers=(LAYERS,), rows=400)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    """The target of the captured texts, with its files."""
    return target_with_files(tmp_path_factory.mktemp("target"))


def recipe(**options: object) -> Recipe:
    return recipe_class("specinfer")(**{"layers": 1, "steps": 3, "members": 2} | options)


def batch() -> Batch:
    return SHAPE.pad(texts(24))


def trained(stage: Recipe, target: TinyTarget, folder: Path, seed: int = 0) -> SmallDecoder:
    """So little training that about half of the rows are right."""
    settings = Settings(tokens=3000, precision="fp32", patience=0, judgements=4, learning_rate=1e-2, seed=seed)
    stream = Batches(InMemory(texts(24)), SHAPE, seed=seed)
    task = Task(stage, stage.head(target, None, 0), teacher(), stream, held_out_batches(texts(24), SHAPE))
    return Training(task, settings, folder).run().head


def test_the_second_member_learns_what_the_first_misses(target: TinyTarget, tmp_path: Path) -> None:
    """More of it than a member trained by itself, in another order of texts, and together they are right more often."""
    made, one = recipe(easy=0.0), batch()
    first = trained(made.next_stage([]), target, tmp_path / "1")
    boosted = trained(made.next_stage([first]), target, tmp_path / "2")
    alone = trained(made.next_stage([]), target, tmp_path / "other", seed=1)
    missed = one.mask & ~agrees_with_target(first, one, teacher())
    assert 50 < missed.sum() < 0.8 * one.mask.sum()
    shares = [
        float((agrees_with_target(head, one, teacher()) & missed).sum() / missed.sum()) for head in (boosted, alone)
    ]
    assert shares[0] > shares[1] + 0.15
    apart, unlike = (made.acceptance_by_member([first, other], [one], teacher()) for other in (boosted, alone))
    assert list(apart) == ["member 1", "member 2", "merged"]
    assert (
        apart["merged"].accepted_length > max(apart["member 1"].accepted_length, unlike["merged"].accepted_length) + 0.1
    )


def test_rows_that_an_earlier_member_has_right_weigh_less(target: TinyTarget) -> None:
    made, one = recipe(easy=0.25), batch()
    first, second = (made.head(target, None, 0) for _ in range(2))
    known = agrees_with_target(first, one, teacher())[one.mask]
    report = made.next_stage([first]).loss(second, one, teacher())
    hard, easy = int((~known).sum()), int(known.sum())
    assert report.weight == pytest.approx(hard + 0.25 * easy)
    plain = made.next_stage([]).loss(second, one, teacher())
    assert plain.weight == hard + easy
    assert report.loss.item() != pytest.approx(plain.loss.item(), rel=1e-3)
    only = dataclasses.replace(made, easy=1.0).next_stage([first]).loss(second, one, teacher())
    assert only.loss.item() == pytest.approx(plain.loss.item(), rel=1e-5)


def test_nothing_is_left_for_a_member_after_a_perfect_one(target: TinyTarget) -> None:
    made = recipe(easy=0.0)
    perfect = dataclasses.replace(made, layers=2).head(target, None, 0)
    one = SHAPE.pad(texts(6))
    one = dataclasses.replace(
        one, mask=one.mask & agrees_with_target(perfect, one, teacher())
    )  # but for ties that rounding turns
    report = made.next_stage([perfect]).loss(made.head(target, None, 0), one, teacher())
    assert (report.loss.item(), report.weight) == (0.0, 0.0)


def test_members_end_after_the_last(target: TinyTarget) -> None:
    made = recipe(members=2)
    heads = [made.head(target, None, 0) for _ in range(2)]
    assert made.next_stage(heads[:1]) == made
    assert made.next_stage(heads) is None
    assert "earlier" not in "".join(dataclasses.asdict(made.next_stage(heads[:1])))


def test_a_merged_tree_is_right_where_one_chain_is_all_the_way() -> None:
    one = SHAPE.pad(texts(6))
    best = teacher().best(one.final)
    true = torch.stack([one.following(depth + 2) for depth in range(2)])
    wrong = (true + 1) % 64
    first_half = torch.stack([true[0], wrong[1]])
    second_half = torch.stack([wrong[0], true[1]])
    crossed = drafted_acceptance(one, [first_half, second_half], best)
    assert crossed.rates == [1.0, 0.0], "a chain went on where another one had been right"
    assert drafted_acceptance(one, [wrong, true], best).rates == [1.0, 1.0]
    alone = drafted_acceptance(one, [first_half], best)
    assert (crossed.accepted.tolist(), crossed.tested.tolist()) == (alone.accepted.tolist(), alone.tested.tolist())


def test_a_folder_of_members_stands_for_them(tmp_path: Path) -> None:
    for name in ("1", "2", "4", "10", "training", "untrained"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    members = tuple(str(tmp_path / name) for name in ("1", "2"))
    assert members_in(tmp_path) == members
    assert SpecInfer(models=(str(tmp_path),)).models == members
    assert SpecInfer.automatic([str(tmp_path)]) == SpecInfer(models=members)
    (tmp_path / "config.json").write_text("{}")
    assert members_in(tmp_path) == (str(tmp_path),)
    assert SpecInfer.automatic([str(tmp_path)]) is None


def test_the_command_makes_members_that_draft_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.train.evaluation.payoff.TOKENS", 8)
    options = ["--members", "2", "--tokens", "900", "--answer-max-tokens", "8", "--learning-rate", "1e-2"]
    model, output, words = training("specinfer", tmp_path, *options, "--patience", "0")
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    names = ["none", "ngram", "draft_model, untrained", "member 1", "member 2", "specinfer"]
    assert [row["method"] for row in result["bought"]] == names
    assert list(result["apart"]) == ["member 1", "member 2", "merged"]
    weights = [(output / name / "model.safetensors").read_bytes() for name in ("1", "2")]
    assert weights[0] != weights[1]
    states = [torch.load(output / name / "training" / "state.pt", weights_only=True) for name in ("1", "2")]
    assert [len(state["identity"]["trained before"]) for state in states] == [0, 1], "a member knows those before it"
    assert main(words) == 0
    assert weights == [(output / name / "model.safetensors").read_bytes() for name in ("1", "2")], "trained again"
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["apart"] == result["apart"]
    fewer = [*words[: words.index("--members")], "--members", "1", *words[words.index("--members") + 2 :]]
    assert main(fewer) == 2
    assert "2 is from an earlier training and would be used with the 1 networks of this one" in capsys.readouterr().err
    words = ["generate", "say 3 aloud", "--model", str(model), "--max-tokens", "8", "--json"]
    assert main([*words, "--speculative-draft-model-path", str(output)]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["speculation"]["algorithm"] == "specinfer"
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == done["token_ids"]
