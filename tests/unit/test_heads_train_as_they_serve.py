"""What a head answers while it is trained is what it answers while it drafts: positions, shifts, masks and all.

A row too early or too late raises no error, it only costs acceptance; so the two ways of computing are compared.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import VOCABULARY, tiny_model
from tiny_heads import SOME

from outrider.heads import runner
from outrider.heads.runner import BlockRunner, FeatureRunner
from outrider.kv.pool import PagedCache
from outrider.models.hf.model import HFModel
from outrider.train.features.batches import Batch
from outrider.train.features.teacher import Teacher
from outrider.train.recipes._blocks import corrected, draft_blocks
from outrider.train.recipes._calibration import calibration_error, cross_validated_errors, scaling_temperatures
from outrider.train.recipes._unroll import unroll
from outrider.train.recipes.base import recipe_class
from outrider.tree import SequenceRows, TreeBatch, TreeBuilder

LENGTH, START = 20, 11
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def _unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight-bit weights would hide small differences."""
    monkeypatch.setattr(runner, "ready", lambda head, target: head)


def text_of(target: HFModel) -> Batch:
    """A random text with every layer's rows."""
    tokens = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(4))
    cache = PagedCache(4, 16)
    cache.extend("text", LENGTH)
    rows = TreeBatch.pack([SequenceRows("text", 0, tuple(tokens.tolist()), None, all_logits=True)])
    hidden = target.forward(rows, cache, tuple(range(target.layers + 1))).hidden
    features = {layer: part.clone()[None] for layer, part in hidden.items()}
    return Batch(tokens[None], torch.ones(1, LENGTH, dtype=torch.bool), features, torch.tensor([LENGTH]))


def head_of(method: str, target: HFModel, **options: object) -> torch.nn.Module:
    head = recipe_class(method)(**options).head(target, SOME, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return head.eval()


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@torch.no_grad()
def test_an_eagle_head(method: str) -> None:
    target = tiny_model(0)
    head, text = head_of(method, target), text_of(target)
    tokens = text.tokens[0].tolist()
    trained = [answers[0, START] for answers in unroll(head, text, Teacher.of(target), 4)]

    served, cache = FeatureRunner(head, target), PagedCache(4, 16)  # type: ignore[arg-type]
    cache.extend("text", LENGTH + 8)
    features = served.fuse([text.features[layer][0] for layer in served.hidden_layers])
    tree = TreeBuilder(tokens[START + 1]).build()
    rows = SequenceRows("text", 0, tuple(tokens[1 : START + 1]), tree)
    answers, _ = served.forward(TreeBatch.pack([rows]), features[: START + 1], cache)
    torch.testing.assert_close(answers[-1], trained[0], **CLOSE)
    for step in range(1, 4):
        tree = TreeBuilder(tokens[START + 1]).chain(tokens[START + 2 : START + 2 + step]).build()
        rows = SequenceRows("text", 0, tuple(tokens[1 : START + 1]), tree, skip=START + step)
        answers, logits = served.forward(TreeBatch.pack([rows]), answers[-1:], cache)
        torch.testing.assert_close(answers[-1], trained[step], **CLOSE)
    ids = slice(None) if head.ids is None else head.ids
    torch.testing.assert_close(logits[-1, ids], head.logits(trained[-1][None], target.unembed)[0], **CLOSE)


@pytest.mark.parametrize(
    ("method", "correction"),
    [
        ("dspark", "markov"),
        ("dspark", "gated"),
        ("dspark", "rnn"),
        ("dspark", "independent"),
        ("dflash", "independent"),
    ],
)
@torch.no_grad()
def test_a_block_head(method: str, correction: str) -> None:
    target = tiny_model(0)
    head, text = head_of(method, target, slots=5, rank=8, correction=correction), text_of(target)
    tokens = text.tokens[0].tolist()
    drafted = draft_blocks(
        head, text, Teacher.of(target), torch.tensor([[3, START]]), torch.ones(1, 2, dtype=torch.bool)
    )
    trained = corrected(head, drafted)[0, 1]

    served, cache = BlockRunner(head, target), PagedCache(4, 16)  # type: ignore[arg-type]
    cache.extend("text", LENGTH + 8)
    features = [text.features[layer][0, : START + 1] for layer in served.hidden_layers]
    context = SequenceRows("text", 0, tuple(tokens[: START + 1]), None)
    served.extend(TreeBatch.pack([context]), features, cache)
    masks = (served.mask_id,) * (served.slots - 1)
    rows = SequenceRows("text", START + 1, (tokens[START + 1], *masks), None, together=True)
    block = served.block(TreeBatch.pack([rows]), cache)
    for slot in range(served.drafts):
        previous = torch.tensor([tokens[START + 1 + slot]])
        torch.testing.assert_close(block.logits(slot, previous)[0, head.ids], trained[slot], **CLOSE)
        if head.config.confidence:
            said = torch.sigmoid(head.confidence(drafted.previous, drafted.slots.hidden))[0, 1, slot]
            torch.testing.assert_close(block.confidence(slot, previous)[0], said, **CLOSE)


def test_scaling_makes_an_overconfident_head_honest() -> None:
    """Survivals of an overconfident head, with twice the logits it should have, are true after scaling."""
    dice = torch.Generator().manual_seed(0)
    honest = torch.randn(20000, 4, generator=dice) + 1.0
    right = (torch.rand(honest.shape, generator=dice) < torch.sigmoid(honest)).cumprod(-1).bool()
    temperatures = scaling_temperatures(2.0 * honest, right)
    assert all(1.7 < temperature < 2.4 for temperature in temperatures)
    survival = torch.ones(len(honest))
    for slot, temperature in enumerate(temperatures):
        survival = survival * torch.sigmoid(2.0 * honest[:, slot] / temperature)
        assert calibration_error(survival, right[:, slot]) < 0.02
    assert calibration_error(torch.sigmoid(2.0 * honest[:, 0]), right[:, 0]) > 0.04


def test_calibration_is_checked_on_other_texts_than_it_was_fitted_on() -> None:
    dice = torch.Generator().manual_seed(0)
    honest = torch.randn(6, 3000, 3, generator=dice) + 1.0
    right = (torch.rand(honest.shape, generator=dice) < torch.sigmoid(honest)).cumprod(-1).bool()
    found = cross_validated_errors([(3.0 * one, did) for one, did in zip(honest, right, strict=True)])
    assert found["calibration error"] < 0.02
    assert found["calibration error, unscaled"] > 0.05
    # Texts of the other half say the opposite: what was fitted there is of no use here.
    opposed = [
        (3.0 * one, did if part % 2 else ~did) for part, (one, did) in enumerate(zip(honest, right, strict=True))
    ]
    assert cross_validated_errors(opposed)["calibration error"] > 0.1
    assert cross_validated_errors([(honest[0], right[0])]) == {}


def test_a_confidence_without_a_whole_block_keeps_its_temperatures() -> None:
    made = recipe_class("dspark")(slots=3, blocks=1, rank=4, inner=32)
    target = tiny_model(0)
    head = made.head(target, None, seed=0)
    head.config = dataclasses.replace(head.config, temperatures=(2.0, 2.0, 2.0))
    one = text_of(target)
    short = dataclasses.replace(one, mask=one.mask & (torch.arange(LENGTH) == START))  # one row of an answer
    assert made.calibrate(head, [short], Teacher.of(target)) == {}
    assert head.config.temperatures == (2.0, 2.0, 2.0)
