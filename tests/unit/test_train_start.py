"""What a training cannot begin with is refused, with the way out, before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_model

from outrider.errors import ConfigError
from outrider.heads.checkpoint import TargetFacts
from outrider.train.recipes.base import Recipe, recipe_class
from outrider.train.start import check_start, started_head

SMALL = {"medusa": {"heads": 2}, "eagle3": {"inner": 32}, "dspark": {"slots": 3, "blocks": 1, "rank": 8, "inner": 32}}


def recipe(method: str, **options: object) -> Recipe:
    return recipe_class(method)(**SMALL.get(method, {}) | options)


def written(method: str, folder: Path) -> str:
    """The folder of an untrained head."""
    made, target = recipe(method), tiny_model()
    made.product.write(folder, made.head(target, None, 0), TargetFacts.of(target), {})
    return str(folder)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("medusa", {"heads": 4}, "with heads 2, and this training's would have 4; give --heads 2, or begin without"),
        ("medusa", {"layers": 2}, "with layers 1, and this training's would have 2; give --layers 1"),
        ("eagle3", {"inner": 64}, "with inner 32, and this training's would have 64; give --inner 32"),
        ("dspark", {"slots": 4}, "with slots 3, and this training's would have 4; give --slots 3"),
        ("dspark", {"blocks": 2}, "with blocks 1, and this training's would have 2; give --blocks 1"),
        ("dspark", {"rank": 4}, "with rank 8, and this training's would have 4; give --rank 8"),
    ],
)
def test_a_head_of_another_shape_is_refused(
    method: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    start = written(method, tmp_path / "head")
    with pytest.raises(ConfigError, match=message):
        check_start(recipe(method, **options), start, tmp_path / "out", tiny_model())
    check_start(recipe(method), start, tmp_path / "out", tiny_model())
    assert not (tmp_path / "out").exists()


def test_a_block_drafter_of_the_other_method_is_refused(tmp_path: Path) -> None:
    start = written("dspark", tmp_path)
    wanted = recipe("dflash", slots=3, blocks=1, rank=8, inner=32, correction="markov")
    with pytest.raises(ConfigError, match=r"with draft_from_anchor True, .* False; train its own method, or begin"):
        started_head(wanted, Path(start), tiny_model())


@pytest.mark.parametrize("method", ["draft_model", "specinfer"])
def test_what_begins_with_layers_of_the_target_takes_no_head(method: str, tmp_path: Path) -> None:
    start = written("medusa", tmp_path / "head")
    with pytest.raises(ConfigError, match=f"{method} begins with layers of the target, .* leave out --start-from"):
        check_start(recipe(method), start, tmp_path / "out", tiny_model())


def test_members_of_an_earlier_training_do_not_join(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    target = tiny_model()
    check_start(recipe("specinfer", members=3), "", tmp_path, target)
    with pytest.raises(ConfigError, match=r"3 is left of an earlier training and would join the 2 of this one; delete"):
        check_start(recipe("specinfer", members=2), "", tmp_path, target)
