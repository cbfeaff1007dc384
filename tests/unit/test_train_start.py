"""What a training cannot begin with is refused, with the way out, before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny_model

from outrider.errors import ConfigError
from outrider.heads.checkpoint import TargetFacts
from outrider.train.loop.warm_start import check_start, load_start
from outrider.train.recipes.base import Recipe, recipe_class

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
        ("medusa", {"heads": 4}, "with heads 2, but this training uses 4; give --heads 2, or leave out --start-from"),
        ("medusa", {"layers": 2}, "with layers 1, but this training uses 2; give --layers 1"),
        ("eagle3", {"inner": 64}, "with inner 32, but this training uses 64; give --inner 32"),
        ("dspark", {"slots": 4}, "with slots 3, but this training uses 4; give --slots 3"),
        ("dspark", {"blocks": 2}, "with blocks 1, but this training uses 2; give --blocks 1"),
        ("dspark", {"rank": 4}, "with rank 8, but this training uses 4; give --rank 8"),
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
    with pytest.raises(ConfigError, match=r"with draft_from_anchor True, .* False; train its own method, or leave out"):
        load_start(wanted, Path(start), tiny_model())


@pytest.mark.parametrize("method", ["draft_model", "specinfer"])
def test_what_begins_with_layers_of_the_target_takes_no_head(method: str, tmp_path: Path) -> None:
    start = written("medusa", tmp_path / "head")
    with pytest.raises(ConfigError, match=f"{method} starts from layers of the target, .* leave out --start-from"):
        check_start(recipe(method), start, tmp_path / "out", tiny_model())


def test_members_of_an_earlier_training_do_not_join(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    target = tiny_model()
    check_start(recipe("specinfer", members=3), "", tmp_path, target)
    with pytest.raises(
        ConfigError, match=r"3 is from an earlier training and would be used with the 2 networks of this one; delete"
    ):
        check_start(recipe("specinfer", members=2), "", tmp_path, target)


@pytest.mark.parametrize("method", ["blockwise", "medusa", "eagle", "eagle3", "dspark", "dflash"])
def test_a_head_goes_on_with_the_guesses_it_had(method: str, tmp_path: Path) -> None:
    """What is not in the file, such as an LM head that is the target's own, is there again."""
    made, target = recipe(method), tiny_model()
    head = made.head(target, torch.arange(0, target.vocabulary, 2), 0)
    with torch.no_grad():
        for weight in head.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight)))
    made.product.write(tmp_path, head, TargetFacts.of(target), {})
    again = load_start(made, tmp_path, target)
    assert tensors(again).keys() == tensors(head).keys()
    for name, tensor in tensors(head).items():
        assert torch.equal(tensors(again)[name], tensor), name


def tensors(head: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of a head, those included that its file does not hold."""
    return dict(head.named_parameters()) | dict(head.named_buffers())


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dspark", {"mask_id": 10_000_000}, "mask_id must be below the target's 64 tokens, not 10000000"),
        ("dflash", {"mask_id": 10_000_000}, "mask_id must be below the target's 64 tokens, not 10000000"),
    ],
)
def test_an_option_that_does_not_fit_the_target_is_refused_at_once(
    method: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_start(recipe(method, **options), "", tmp_path, tiny_model())


def test_a_correction_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no correction 'marcov'; there are: independent, markov, gated, rnn"):
        recipe("dspark", correction="marcov")
