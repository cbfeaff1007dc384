"""Tree attention, in its slow and its fused form, against a loop over rows and heads."""

from __future__ import annotations

import itertools

import pytest
import torch

from outrider.kernels.fused import FOLDED_ROWS, fused_attention, spread_bias
from outrider.kernels.reference import tree_attention
from outrider.models.pass_plan import Reach, SequencePlan

WIDTH, VALUE_WIDTH, SCALING = 8, 6, 0.3


def naive(query, keys, values, visible, *, scaling, softcap=None, sinks=None):
    """One row, one head, one column at a time; visible is bool [rows, columns]."""
    heads, rows, _ = query.shape
    group = heads // keys.shape[0]
    out = torch.zeros(rows, heads, values.shape[-1], dtype=torch.float64)
    for row, head in itertools.product(range(rows), range(heads)):
        columns = [column for column in range(keys.shape[1]) if visible[row, column]]
        scores = [float(query[head, row].double() @ keys[head // group, c].double()) * scaling for c in columns]
        if softcap is not None:
            scores = [softcap * float(torch.tanh(torch.tensor(score / softcap).double())) for score in scores]
        extra = [] if sinks is None else [float(sinks[head])]
        weights = torch.softmax(torch.tensor(scores + extra, dtype=torch.float64), 0)
        for weight, column in zip(weights, columns, strict=False):
            out[row, head] += weight * values[head // group, column].double()
    return out


def problem(rows, columns, heads=6, key_heads=2, value_width=VALUE_WIDTH):
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    shapes = ((heads, rows, WIDTH), (key_heads, columns, WIDTH), (key_heads, columns, value_width))
    query, keys, values = (torch.randn(shape, generator=generator) for shape in shapes)
    visible = torch.rand(rows, columns, generator=generator) < 0.7
    tail = torch.eye(rows, dtype=torch.bool)[:, -min(rows, columns) :]
    visible[:, columns - tail.shape[1] :] |= tail  # every row sees at least itself
    return query, keys, values, visible


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (6, 2), (5, 1)])
def test_reference_equals_the_loop(heads: int, key_heads: int, with_sinks: bool, softcap: float | None) -> None:
    query, keys, values, visible = problem(5, 9, heads, key_heads)
    visible[:, :3] = True  # a committed prefix that no mask covers
    sinks = torch.linspace(-1, 2, heads) if with_sinks else None
    options = {"scaling": SCALING, "softcap": softcap, "sinks": sinks}
    ours = tree_attention(query, keys, values, ~visible[:, 3:], **options)
    assert torch.allclose(ours.double(), naive(query, keys, values, visible, **options), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, FOLDED_ROWS, FOLDED_ROWS + 1])
def test_fused_equals_the_reference_on_strided_views(rows: int) -> None:
    query, keys, values, visible = problem(rows, rows + 7, value_width=WIDTH)
    visible[:, :7] = True
    pool = torch.zeros(2, 2, 200, WIDTH)
    window = slice(30, 30 + rows + 7)
    pool[0, :, window], pool[1, :, window] = keys, values
    batch = torch.zeros(6, 100, WIDTH)
    batch[:, 10 : 10 + rows] = query
    hidden = ~visible[:, 7:] if rows > 1 else None
    bias = None if hidden is None else spread_bias(hidden, rows + 7, torch.float32, group=3)
    ours = fused_attention(batch[:, 10 : 10 + rows], pool[0, :, window], pool[1, :, window], bias, scaling=SCALING)
    assert torch.allclose(ours, tree_attention(query, keys, values, hidden, scaling=SCALING), atol=1e-6)


@pytest.mark.parametrize("reach", [Reach(), Reach(window=3), Reach(chunk=4), Reach(window=100), Reach(chunk=1)])
def test_a_plan_hides_what_is_out_of_reach(reach: Reach) -> None:
    """A chain 6, 7 and a sibling of 7, after six committed rows."""
    tail_positions = torch.tensor([6, 7, 7])
    ancestors = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    plan = SequencePlan(slice(0, 3), 9, slice(0, 9), tail_positions, tail_positions, ancestors)
    positions = [0, 1, 2, 3, 4, 5, 6, 7, 7]
    first, hidden = plan.hidden(reach)
    seen = torch.ones(3, 9, dtype=torch.bool)
    seen[:, :first] = False
    assert hidden is not None
    seen[:, 9 - hidden.shape[1] :] &= ~hidden
    for row, column in itertools.product(range(3), range(9)):
        own, other = int(tail_positions[row]), positions[column]
        expected = column < 6 or bool(ancestors[row, column - 6])
        if reach.window is not None:
            expected &= own - other < reach.window
        if reach.chunk is not None:
            expected &= own // reach.chunk == other // reach.chunk
        assert bool(seen[row, column]) == expected, (row, column)
    _, bias = plan.bias(reach, torch.float32, group=2)
    assert bias is not None and torch.equal(bias == 0, seen[:, first:].repeat(2, 1))


def test_a_single_row_without_a_window_needs_no_mask() -> None:
    plan = SequencePlan(
        slice(0, 1), 9, slice(0, 9), torch.tensor([8]), torch.tensor([8]), torch.ones(1, 1, dtype=torch.bool)
    )
    assert plan.hidden(Reach()) == (0, None)
    assert plan.bias(Reach(), torch.float32, group=3) == (0, None)
