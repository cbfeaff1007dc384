"""Weights of drafted positions: the default is what it always was, and D-PACE's are those of a direct computation."""

from __future__ import annotations

import dataclasses
from typing import Any

import captured
import pytest
import torch
from captured import LAYERS, InMemory, teacher
from tiny import VOCABULARY
from torch.nn.functional import binary_cross_entropy_with_logits

from outrider.errors import ConfigError, TrainingError
from outrider.train.features.batches import Batch, Batches, BatchShape, held_out_batches
from outrider.train.features.vocabulary import draft_columns
from outrider.train.loop.resume import check_identity, identity
from outrider.train.loop.training import Task, Training
from outrider.train.recipes._blocks import choose_starts, corrected, draft_blocks
from outrider.train.recipes._unroll import unroll
from outrider.train.recipes._weighted_loss import WEIGHTINGS, Weights, d_pace, exponential, geometric
from outrider.train.recipes.base import Recipe, recipe_class, starts
from outrider.train.recipes.dspark import _accepted
from outrider.train.settings import Settings

SHAPE = BatchShape(layers=(0, 1, LAYERS), rows=400)
SMALL = {
    "eagle3": {"steps": 3},
    "dspark": {"slots": 4, "blocks": 1, "anchors": 4, "rank": 8},
    "dflash": {"slots": 4, "blocks": 1, "anchors": 4, "rank": 8},
}
IDS = torch.arange(0, VOCABULARY, 2)
ALPHA = 0.3


class TinyTarget(captured.TinyTarget):
    context_length = 512


def texts(count: int) -> list[captured.Text]:
    """Captured texts with one more layer, for heads that read it."""
    found = captured.texts(count)
    return [dataclasses.replace(one, features={**one.features, 1: one.features[0].flip(-1)}) for one in found]


def recipe(method: str, **options: object) -> Any:
    return recipe_class(method)(**SMALL[method] | options)


def batch() -> Batch:
    return SHAPE.pad(texts(5), seed=3)


def moved_head(made: Recipe, ids: torch.Tensor | None) -> Any:
    """The head with every weight moved off its beginning."""
    head, generator = made.head(TinyTarget(), ids, seed=1), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return head


def rows_of(made: Any, head: Any, one: Batch) -> list[list[tuple[tuple[int, int], torch.Tensor, float]]]:
    """Of each depth (the start, its loss, the draft's probability of the true token), as many as are counted."""
    steps = made.steps if hasattr(made, "steps") else head.config.drafts
    if hasattr(made, "steps"):
        answers = list(unroll(head, one, teacher(), steps))
        grids = [head.logits(rows, teacher().logits) for rows in answers]
        wanted = [[(text, row, (text, row)) for text, row in grid.nonzero().tolist()] for grid in starts(one, steps)]
        drafted = None
    else:
        drafted = draft_blocks(head, one, teacher(), *choose_starts(one, made.anchors))
        grids = list(corrected(head, drafted).unbind(2))
        wanted = [
            [
                (text, int(drafted.rows[text, block]), (text, block))
                for text, block in drafted.real.nonzero().tolist()
                if starts(one, steps)[slot, text, drafted.rows[text, block]]
            ]
            for slot in range(steps)
        ]
    found = []
    for depth, cells in enumerate(wanted):
        found.append([])
        for text, row, cell in cells:
            x, known = draft_columns(head.ids, one.following(depth + 2)[text, row][None])
            if not known:
                continue
            z = grids[depth][cell][None]
            p = torch.softmax(teacher().logits(one.final[text, row + 1 + depth][None], head.ids), -1)
            loss = made.divergence(z, p, x)
            if drafted is not None and head.config.confidence:
                text_, block = cell
                guess = head.confidence(
                    drafted.previous[text_, block, depth][None], drafted.slots.hidden[text_, block, depth][None]
                )
                loss = loss + binary_cross_entropy_with_logits(guess, _accepted(z, p), reduction="none")
            found[-1].append(((text, row), loss[0], float(torch.softmax(z.detach().float(), -1)[0, x[0]])))
    return found


def loss_before(made: Any, head: Any, one: Batch, shares: list[float]) -> tuple[torch.Tensor, float]:
    """What recipes computed when every depth had one weight, in the same operations."""
    total, weight = one.final.new_zeros(()), 0.0
    if hasattr(made, "steps"):
        counted = starts(one, made.steps)
        for depth, answers in enumerate(unroll(head, one, teacher(), made.steps)):
            where, rows = counted[depth].nonzero(as_tuple=True)
            x, known = draft_columns(head.ids, one.following(depth + 2)[where, rows])
            where, rows, x = where[known], rows[known], x[known]
            p = torch.softmax(teacher().logits(one.final[where, rows + 1 + depth], head.ids), -1)
            losses = made.divergence(head.logits(answers[where, rows], teacher().logits), p, x)
            total = total + shares[depth] * losses.sum()
            weight += shares[depth] * len(rows)
        return total / weight, weight
    drafted = draft_blocks(head, one, teacher(), *choose_starts(one, made.anchors))
    logits, counted = corrected(head, drafted), starts(one, head.config.drafts)
    all_texts = torch.arange(len(drafted.rows)).unsqueeze(1)
    for slot, share in enumerate(shares):
        x, known = draft_columns(head.ids, one.following(slot + 2)[all_texts, drafted.rows])
        kept = drafted.real & counted[slot][all_texts, drafted.rows] & known
        where, rows = all_texts.expand_as(kept)[kept], drafted.rows[kept]
        p = torch.softmax(teacher().logits(one.final[where, rows + 1 + slot], head.ids), -1)
        z = logits[:, :, slot][kept]
        losses = made.divergence(z, p, x[kept])
        if head.config.confidence:
            guess = head.confidence(drafted.previous[:, :, slot][kept], drafted.slots.hidden[:, :, slot][kept])
            losses = losses + binary_cross_entropy_with_logits(guess, _accepted(z, p), reduction="none")
        total = total + share * losses.sum()
        weight += share * int(kept.sum())
    return total / weight, weight


@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
@pytest.mark.parametrize("method", SMALL)
def test_the_default_is_unchanged_to_the_bit(method: str, ids: torch.Tensor | None) -> None:
    made, one = recipe(method), batch()
    head = moved_head(made, ids)
    shares = geometric(3, 0.8) if method == "eagle3" else exponential(head.config.drafts, 4.0)
    expected, weight = loss_before(made, head, one, shares.tolist())
    before = torch.autograd.grad(expected, list(head.parameters()), allow_unused=True)
    report = made.loss(head, one, teacher())
    now = torch.autograd.grad(report.loss, list(head.parameters()), allow_unused=True)
    assert torch.equal(report.loss, expected)
    assert report.weight == weight
    for one_gradient, other in zip(before, now, strict=True):
        assert (one_gradient is None and other is None) or torch.equal(one_gradient, other)


@pytest.mark.parametrize("ids", [None, IDS], ids=["whole", "reduced"])
@pytest.mark.parametrize("method", SMALL)
def test_d_pace_is_the_direct_computation(method: str, ids: torch.Tensor | None) -> None:
    made, one = recipe(method, weights="d_pace", smoothing=ALPHA), batch()
    head = moved_head(made, ids)
    found = rows_of(made, head, one)
    chances = [{start: q for start, _, q in depth} for depth in found]
    ends = starts(one, len(found)).sum(0)

    def weight(start: tuple[int, int], depth: int) -> float:
        """Σ_{j ≥ k} Π_{i ≤ j} c_i over the positions that there are."""
        total = 0.0
        for last in range(depth, int(ends[start])):
            product = 1.0
            for place in range(last + 1):
                product *= (1 - ALPHA) * chances[place].get(start, 0.0) + ALPHA
            total += product
        return total

    pairs = [(weight(start, depth), loss) for depth, cells in enumerate(found) for start, loss, _ in cells]
    total = sum(share for share, _ in pairs)
    report = made.loss(head, one, teacher())
    assert report.weight == pytest.approx(total, rel=1e-5)
    assert report.loss.item() == pytest.approx(sum(share * loss.item() for share, loss in pairs) / total, rel=1e-4)
    assert len({round(share, 4) for share, _ in pairs}) > 10, "every start has weights of its own"
    assert report.loss.requires_grad


def test_no_gain_is_expected_behind_the_end() -> None:
    q = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]])
    counted = torch.tensor([[True, True, True], [True, False, False]])
    expected = torch.tensor([[0.875, 0.375, 0.125], [0.5, 0.0, 0.0]])
    torch.testing.assert_close(d_pace(q, 0.0, counted), expected)


@pytest.mark.parametrize(("name", "option", "value"), [("geometric", "decay", 0.5), ("exponential", "scale", 2.0)])
@pytest.mark.parametrize("method", SMALL)
def test_any_recipe_takes_any_weighting(method: str, name: str, option: str, value: float) -> None:
    made, one = recipe(method, weights=name, **{option: value}), batch()
    head = moved_head(made, None)
    depths = 3 if method == "eagle3" else head.config.drafts
    shares = {"geometric": geometric, "exponential": exponential}[name](depths, value)
    assert torch.equal(made.loss(head, one, teacher()).loss, loss_before(made, head, one, shares.tolist())[0])


@pytest.mark.parametrize("method", SMALL)
def test_a_split_batch_has_the_same_d_pace_gradient(method: str) -> None:
    made = recipe(method, weights="d_pace", **({} if method == "eagle3" else {"anchors": 64}))
    head = moved_head(made, IDS)
    reports = [made.loss(head, SHAPE.pad(part), teacher()) for part in (texts(4), texts(4)[:2], texts(4)[2:])]
    whole, *halves = [
        torch.autograd.grad(report.loss * report.weight, list(head.parameters()), allow_unused=True)
        for report in reports
    ]
    for once, first, second in zip(whole, *halves, strict=True):
        if once is not None:
            torch.testing.assert_close(once, first + second, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", SMALL)
def test_training_with_d_pace_lowers_the_loss(method: str, tmp_path: Any) -> None:
    torch.set_num_threads(1)
    made = recipe(method, weights="d_pace")
    stream = Batches(InMemory(texts(16)), SHAPE, seed=0)
    task = Task(made, made.head(TinyTarget(), None, seed=0), teacher(), stream, held_out_batches(texts(4), SHAPE))
    settings = Settings(tokens=3000, precision="fp32", patience=0, judgements=4, learning_rate=1e-2)
    losses = [loss for _, loss in Training(task, settings, tmp_path).run().findings.losses]
    assert sum(losses[-3:]) < 0.85 * sum(losses[:3])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"weights": "linear"}, "no weighting 'linear'; there are: geometric, exponential, d_pace"),
        ({"smoothing": 0.2}, "smoothing has no effect with"),
        ({"weights": "d_pace", "scale": 2.0}, "scale has no effect with d_pace weights"),
        ({"weights": "d_pace", "smoothing": 1.5}, "smoothing must be"),
    ],
)
@pytest.mark.parametrize("method", SMALL)
def test_options_that_mean_nothing_are_refused(method: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        recipe(method, **options)


def test_every_weighting_names_an_option_of_every_such_recipe() -> None:
    for method in SMALL:
        names = {item.name for item in dataclasses.fields(recipe_class(method))}
        assert {weighting.number for weighting in WEIGHTINGS.values()} <= names
        assert Weights.of(recipe(method)).weighting in WEIGHTINGS.values()


@pytest.mark.parametrize("method", ["eagle3", "dspark", "dflash"])
def test_a_state_older_than_an_option_is_gone_on_with(method: str, tmp_path: Any) -> None:
    recipe, settings = recipe_class(method)(), Settings()
    default = next(name for name, one in WEIGHTINGS.items() if one is Weights.of(recipe).weighting)
    now = identity(recipe, settings, {})
    older = {name: value for name, value in now.items() if name != "weights"}
    check_identity(tmp_path, older, now, recipe)
    changed = identity(dataclasses.replace(recipe, weights="d_pace"), settings, {})  # type: ignore[type-var]
    with pytest.raises(TrainingError, match=f"--weights {default}, not d_pace"):
        check_identity(tmp_path, older, changed, recipe)
