"""Heads as they start, and what each recipe makes of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from captured import LAYERS, TinyTarget, teacher, texts
from tiny import VOCABULARY

from outrider.errors import ConfigError
from outrider.train.features.batches import Batch, BatchShape
from outrider.train.objectives import make_objective
from outrider.train.recipes.base import Acceptance, Recipe, drafted_acceptance, recipe_class, starts, trainable

HEADS = 3
METHODS = ["blockwise", "medusa"]
SHAPE = BatchShape(layers=(LAYERS,), rows=400)
IDS = torch.arange(0, VOCABULARY, 2)


def recipe(method: str, **options: object) -> Recipe:
    return recipe_class(method)(heads=HEADS, **options)


def batch() -> Batch:
    return SHAPE.pad(texts(6))


def unequal(head: torch.nn.Module) -> torch.nn.Module:
    """The head with every weight moved, so that depths differ."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return head


def test_every_recipe_registers() -> None:
    assert set(METHODS) <= set(trainable())
    for name in trainable():
        assert recipe_class(name).method == name
    with pytest.raises(ConfigError, match="method 'ngram' cannot be trained; trainable methods are: blockwise"):
        recipe_class("ngram")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
def test_a_head_starts_as_the_targets_own(method: str, ids: torch.Tensor | None) -> None:
    target = TinyTarget()
    head = recipe(method).head(target, ids, seed=1)
    hidden = torch.randn(2, 5, target.width, generator=torch.Generator().manual_seed(0))
    logits = head(hidden)
    expected = target.unembed(hidden)
    expected = expected if ids is None else expected[..., ids]
    assert logits.shape == (2, 5, HEADS, expected.shape[-1])
    for depth in range(HEADS):
        torch.testing.assert_close(logits[:, :, depth], expected)


@pytest.mark.parametrize("method", METHODS)
def test_the_shared_head_is_neither_trained_nor_stored_where_the_method_shares_it(method: str) -> None:
    head = recipe(method).head(TinyTarget(), IDS, seed=1)
    assert "projection" not in head.state_dict()
    assert torch.equal(head.state_dict()["ids"], IDS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("objective", ["cross_entropy", "kl", "0.1*cross_entropy+1.8*tv"])
@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
def test_the_loss_is_the_mean_one_row_at_a_time(method: str, objective: str, ids: torch.Tensor | None) -> None:
    made, one = recipe(method, objective=objective, decay=0.5), batch()
    head = unequal(made.head(TinyTarget(), ids, seed=1))
    known = list(range(VOCABULARY)) if ids is None else ids.tolist()
    total = weight = 0.0
    for text in range(len(one.tokens)):
        for row in range(int(one.lengths[text])):
            for depth in range(HEADS):
                if not one.mask[text, row] or row + depth + 2 >= int(one.lengths[text]):
                    continue
                token = int(one.tokens[text, row + depth + 2])
                if token not in known:
                    continue
                z = head(one.final[text, row])[depth][None]
                p = torch.softmax(teacher().logits(one.final[text, row + depth + 1], ids), -1)[None]
                loss = make_objective(objective)(z, p, torch.tensor([known.index(token)]))
                total, weight = total + 0.5**depth * loss.item(), weight + 0.5**depth
    report = made.loss(head, one, teacher())
    assert report.loss.requires_grad
    assert report.weight == pytest.approx(weight)
    assert report.loss.item() == pytest.approx(total / weight, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_split_in_two_has_the_same_gradient(method: str) -> None:
    made = recipe(method)
    head = unequal(made.head(TinyTarget(), IDS, seed=1))
    reports = [made.loss(head, SHAPE.pad(part), teacher()) for part in (texts(6), texts(6)[:2], texts(6)[2:])]
    whole, *halves = [torch.autograd.grad(report.loss * report.weight, head.parameters()) for report in reports]
    for once, first, second in zip(whole, *halves, strict=True):
        torch.testing.assert_close(once, first + second, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_too_short_for_any_guess_has_no_loss(method: str) -> None:
    made, one = recipe(method), texts(1)[0]
    short = replace(one, tokens=one.tokens[: one.answer_start + 1])
    head = made.head(TinyTarget(), None, seed=1)
    report = made.loss(head, SHAPE.pad([short]), teacher())
    assert (report.loss.item(), report.weight) == (0.0, 0.0)
    assert made.acceptance(head, SHAPE.pad([short]), teacher()).tested.tolist() == [0] * HEADS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_what_a_walk_along_the_text_finds(method: str, temperature: float) -> None:
    made, some = recipe(method), texts(5, temperature=temperature)
    one = SHAPE.pad(some)
    head = unequal(made.head(TinyTarget(), IDS, seed=1))
    best = teacher().best(one.final)
    accepted, tested = [0] * HEADS, [0] * HEADS
    for text in range(len(some)):
        for row in range(some[text].answer_start - 1, len(some[text].tokens) - 1):
            guesses = IDS[head(one.final[text, row]).argmax(-1)].tolist()
            for depth in range(HEADS):
                if row + depth + 2 >= len(some[text].tokens):
                    break
                tested[depth] += 1
                if guesses[depth] != best[text, row + depth + 1]:
                    break
                accepted[depth] += 1
                if best[text, row + depth + 1] != some[text].tokens[row + depth + 2]:
                    break
    found = made.acceptance(head, one, teacher())
    assert (found.accepted.tolist(), found.tested.tolist()) == (accepted, tested)
    assert accepted[0] > 0


def test_perfect_guesses_are_all_accepted() -> None:
    one = batch()
    guesses = torch.stack([one.following(depth + 2) for depth in range(4)])
    found = drafted_acceptance(one, [guesses], teacher().best(one.final))
    assert torch.equal(found.accepted, found.tested)
    assert found.tested.tolist() == [int(part.sum()) for part in starts(one, 4)]
    assert found.accepted_length == pytest.approx(5.0)
    wrong = drafted_acceptance(one, [(guesses + 1) % VOCABULARY], teacher().best(one.final))
    assert wrong.accepted.sum() == 0
    assert (wrong.accepted_length, wrong.tested.tolist()[1:]) == (1.0, [0, 0, 0])


def test_acceptance_adds_up() -> None:
    one = Acceptance(torch.tensor([[3, 1]]), torch.tensor([[4, 2]]))
    both = one + Acceptance(torch.tensor([[1, 1]]), torch.tensor([[4, 2]]))
    assert both.rates == [0.5, 0.5]
    assert both.accepted_length == pytest.approx(1 + 0.5 + 0.25)


def test_chances_by_rank_are_counted_on_the_text() -> None:
    made, some = recipe("medusa"), texts(5)
    head = unequal(made.head(TinyTarget(), IDS, seed=1))
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    made.calibrate(head, [SHAPE.pad(some[:2]), SHAPE.pad(some[2:])], teacher())
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())
    hits, seen = torch.zeros(HEADS, 10), torch.zeros(HEADS)
    for one in some:
        for row in range(one.answer_start - 1, len(one.tokens) - 2):
            ranked = IDS[head(one.features[LAYERS][row].float()).argsort(-1, descending=True)]
            for depth in range(min(HEADS, len(one.tokens) - 2 - row)):
                seen[depth] += 1
                hits[depth] += ranked[depth, :10] == one.tokens[row + depth + 2]
    torch.testing.assert_close(torch.tensor(head.config.chances), hits / seen[:, None], atol=1e-4, rtol=0)
