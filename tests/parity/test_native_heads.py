"""Heads on the CPU kernels against their torch modules, and against themselves in other company."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_native
from tiny_trees import branching
from wrapped import Wrapped

from outrider.heads import native as heads_native
from outrider.heads.blocks import BlockShape
from outrider.heads.dspark import DSparkConfig, DSparkHead
from outrider.heads.eagle import EagleConfig, EagleHead
from outrider.heads.eagle3 import Eagle3Config, Eagle3Head
from outrider.heads.native import (
    NativeBlockRunner,
    NativeFeatureRunner,
    Stack,
    block_runner,
    feature_runner,
)
from outrider.heads.packed_linear import Packing, pack
from outrider.heads.runner import BlockRunner, FeatureRunner, attend_by
from outrider.kernels.native import cpu, missing, physical_cores
from outrider.kv.pool import KVPool, PagedCache
from outrider.kv.state import Kept
from outrider.models.pass_plan import PassPlan
from outrider.tree import SequenceRows, TokenTree, TreeBatch, TreeBuilder, root_only

pytestmark = pytest.mark.skipif(cpu is None, reason=f"{missing}")

WIDTH, VOCABULARY = 64, 70
SHAPE = BlockShape(width=WIDTH, heads=4, key_heads=2, head_width=16, inner=96, positions=256)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
EAGLE = EagleConfig(SHAPE, hidden_layers=(2,))
NARROW = replace(SHAPE, width=32)
DSPARK = DSparkConfig(SHAPE, (0, 1), blocks=2, slots=4, mask_id=0, vocabulary=VOCABULARY, target_vocabulary=90)
EAGLE3 = Eagle3Config(SHAPE, hidden_layers=(0, 1, 2), vocabulary=VOCABULARY)
VARIANTS: dict[str, EagleConfig | Eagle3Config] = {
    "eagle": EAGLE,
    "eagle, two blocks": replace(EAGLE, blocks=2, joint_bias=False),
    "eagle, normed first": replace(EAGLE, first_norm=True),
    "eagle, biases": replace(EAGLE, block=replace(SHAPE, projection_bias=True)),
    "eagle, yarn": replace(EAGLE, block=replace(SHAPE, rope=YARN)),
    "eagle3": EAGLE3,
    "eagle3, normed residual": replace(EAGLE3, norm_before_residual=True),
    "eagle3, normed answers": replace(EAGLE3, norm_output=True, norm_before_residual=True),
    "eagle3, normed heads": replace(EAGLE3, block=replace(SHAPE, head_norms=True, norm_epsilon=1e-4)),
    "eagle3, odd sizes": replace(EAGLE3, block=replace(SHAPE, width=72, inner=100, head_width=20, key_heads=1)),
}
PACKINGS = {"fp32": Packing(body=None, head=None), "q8": Packing(head="Q8_0"), "q4": Packing(body="Q4_0")}


@pytest.fixture(autouse=True)
def all_threads() -> Iterator[None]:
    yield
    cpu.set_threads(physical_cores())
    cpu.select_kernels(None)


@cache
def module(variant: str, packing: str = "fp32") -> Any:
    config = VARIANTS[variant]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = (EagleHead(config) if isinstance(config, EagleConfig) else Eagle3Head(config)).requires_grad_(False)
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.15) if parameter.ndim == 2 else parameter.normal_(1.0, 0.3)
    return pack(made, PACKINGS[packing])


@cache
def stack(variant: str, packing: str = "fp32") -> Stack:
    return Stack(module(variant, packing).parts())


def new_cache(rows: int = 512, page: int = 16) -> PagedCache:
    return KVPool(rows, page).cache("head")


def numbers(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


Row = tuple[torch.Tensor, torch.Tensor]


def batch_of(cache_: PagedCache, *sequences: SequenceRows) -> TreeBatch:
    for sequence in sequences:
        assert cache_.extend(sequence.key, sequence.context + sequence.tail)
    return TreeBatch.pack(sequences)


def in_torch(variant: str, rows: torch.Tensor, beside: torch.Tensor, batch: TreeBatch, cache_: PagedCache) -> Row:
    head = module(variant)
    answers = head(beside[None], rows[None], batch.positions[None], attend_by(PassPlan(batch, cache_)))[0]
    return answers, head.logits(answers[batch.wanted], lambda final: final[:, :0])


def passes() -> list[SequenceRows]:
    """A prompt of two chunks, then a tree."""
    return [
        SequenceRows("a", 0, tuple(range(23)), None, all_logits=True),
        SequenceRows("a", 23, tuple(range(16)), branching(5), all_logits=True),
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_are_those_of_torch(variant: str) -> None:
    """fp32 weights, so only the 16-bit cache tells the two apart."""
    width = VARIANTS[variant].block.width
    caches = new_cache(), new_cache()
    for seed, sequence in enumerate(passes()):
        rows, beside = (numbers(sequence.rows, width, 2 * seed + i) for i in range(2))
        found = stack(variant).forward(rows, beside, batch_of(caches[0], sequence), caches[0])
        expected = in_torch(variant, rows, beside, batch_of(caches[1], sequence), caches[1])
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            if theirs.numel():
                assert float(theirs.std(0).mean()) > 0.1, "rows that are alike would hide what one reads of another"
                assert float((ours - theirs).abs().max()) < 0.005 * float(theirs.std())


@pytest.mark.parametrize("changed", ["beside", "rows", "tree"])
@pytest.mark.parametrize("variant", ["eagle", "eagle3", "eagle3, normed answers"])
def test_the_comparison_sees_whatever_a_step_reads(variant: str, changed: str) -> None:
    """Negative control: a change of one part of the input is far more than the bound allows."""
    tree, rows, beside = branching(5), numbers(7, WIDTH, 1), numbers(7, WIDTH, 2)
    cache_ = new_cache()
    sequence = SequenceRows("a", 0, (), tree)
    before = stack(variant).forward(rows, beside, batch_of(cache_, sequence), cache_)[0]
    if changed == "tree":
        tree = TokenTree(tree.tokens, (-1, 0, 0, 1, 1, 2, 4), tree.survival, tree.candidates)
    else:
        part = rows if changed == "rows" else beside
        part[4] += 0.1 * numbers(1, WIDTH, 3)[0]
    cache_ = new_cache()
    sequence = SequenceRows("a", 0, (), tree)
    after = stack(variant).forward(rows, beside, batch_of(cache_, sequence), cache_)[0]
    assert float((after - before)[4].abs().max()) > 0.015 * float(before.std())


@pytest.mark.parametrize("kernels", [] if cpu is None else cpu.kernel_names())
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("variant", ["eagle, two blocks", "eagle3", "eagle3, odd sizes"])
def test_every_instruction_set_gives_the_same_bits(variant: str, packing: str, kernels: str) -> None:
    width, sequence = VARIANTS[variant].block.width, SequenceRows("a", 0, tuple(range(30)), branching(3))

    def run() -> Row:
        cache_ = new_cache()
        rows, beside = numbers(37, width, 1), numbers(37, width, 2)
        return stack(variant, packing).forward(rows, beside, batch_of(cache_, sequence), cache_)

    expected = run()
    cpu.select_kernels(kernels)
    for found, due in zip(run(), expected, strict=True):
        assert torch.equal(found, due)


@cache
def one_by_one(variant: str, packing: str, length: int) -> Row:
    """One row in a pass, pages side by side, one thread."""
    cpu.set_threads(1)
    cache_, width = new_cache(), VARIANTS[variant].block.width
    rows, beside = numbers(length, width, 1), numbers(length, width, 2)
    made = [
        stack(variant, packing).forward(
            rows[i : i + 1], beside[i : i + 1], batch_of(cache_, SequenceRows("a", i, (), root_only(7))), cache_
        )
        for i in range(length)
    ]
    return torch.cat([answers for answers, _ in made]), torch.cat([logits for _, logits in made])


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_row_has_the_bits_of_steps_one_by_one(data: st.DataObject) -> None:
    """Chunks, trees, neighbours, scattered pages, threads: nothing moves a bit of a row on the text's path."""
    variant = data.draw(st.sampled_from(list(VARIANTS)))
    packing, length = data.draw(st.sampled_from(list(PACKINGS))), data.draw(st.sampled_from([5, 17, 33]))
    answers, logits = one_by_one(variant, packing, length)
    cpu.set_threads(data.draw(st.integers(1, 3)))
    width, cache_ = VARIANTS[variant].block.width, new_cache(1024, data.draw(st.sampled_from([1, 4, 16])))
    rows, beside = numbers(length, width, 1), numbers(length, width, 2)
    place, dice = 0, random.Random(data.draw(st.integers(0, 99)))
    while place < length:
        cache_.extend(f"hole{place}", dice.randrange(1, 20))
        forced = data.draw(st.integers(0, length - place - 1))
        depth = data.draw(st.integers(0, min(5, length - place - forced - 1)))
        tree, path = tree_around(dice, depth)
        neighbour = SequenceRows(f"n{place}", 0, tuple(range(dice.randrange(9))), branching(7))
        sequence = SequenceRows("a", place, (1,) * forced, tree, all_logits=True)
        on_path = [*range(forced), *(forced + node for node in path)]
        due = slice(place, place + forced + depth + 1)
        ours = [numbers(sequence.rows, width, dice.randrange(99)) for _ in range(2)]
        ours[0][on_path], ours[1][on_path] = rows[due], beside[due]
        given_rows = [torch.cat((numbers(neighbour.rows, width, 50), part)) for part in ours]
        found = stack(variant, packing).forward(*given_rows, batch_of(cache_, neighbour, sequence), cache_)
        assert torch.equal(found[0][neighbour.rows :][on_path], answers[due])
        assert torch.equal(found[1][len(found[1]) - sequence.rows :][on_path], logits[due])
        cache_.commit([Kept("a", place, on_path)])
        place += forced + depth + 1


def tree_around(dice: random.Random, depth: int) -> tuple[TokenTree, list[int]]:
    """A tree that holds a path of this depth among branches, and the path's nodes."""
    builder, nodes = TreeBuilder(0), [0]
    for _ in range(depth):
        for _ in range(dice.randrange(3)):
            builder.add(dice.randrange(len(builder)), 100 + len(builder))
        nodes.append(builder.add(nodes[-1], 100 + len(builder)))
    return builder.build(), nodes


WHOLE = replace(DSPARK, vocabulary=0)
RUN: dict[str, tuple[Any, Any]] = {
    "eagle": (EagleHead, replace(EAGLE, block=NARROW)),
    "eagle3": (Eagle3Head, replace(EAGLE3, block=NARROW, vocabulary=20)),
    "dspark": (DSparkHead, replace(DSPARK, block=NARROW, vocabulary=20, target_vocabulary=64)),
    "dflash": (
        DSparkHead,
        replace(
            DSPARK, block=NARROW, vocabulary=0, draft_from_anchor=False, correction="independent", confidence=False
        ),
    ),
}


def network(name: str) -> Any:
    """A random head whose tokens, where it has its own, are every third of the target's."""
    kind, config = RUN[name]
    with torch.random.fork_rng():
        torch.manual_seed(6)
        made = kind(config).requires_grad_(False)
    if made.ids is not None:
        made.ids.copy_(torch.arange(20) * 3)
    return made


def assert_alike(theirs: torch.Tensor, ours: torch.Tensor) -> None:
    """Equal but for what rounding rows to int8 makes of the 16-bit cache."""
    assert torch.equal(theirs.isinf(), ours.isinf())
    known = theirs[theirs.isfinite()]
    assert float((known - ours[ours.isfinite()]).abs().max()) <= 0.06 * float(known.std())


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_feature_runners_answer_alike_in_the_targets_tokens(name: str) -> None:
    """The whole of a drafter's pass: embeddings and, without an LM head of its own, logits come from the target."""
    target, found = tiny_native(), []
    for runner in FeatureRunner(network(name), target), feature_runner(network(name), target):
        cache_ = new_cache()
        batch = batch_of(cache_, SequenceRows("a", 0, (1, 2, 3), branching(5), all_logits=True))
        features = runner.fuse([numbers(len(batch.tokens), 32, seed) for seed in range(len(runner.hidden_layers))])
        found.append(runner.forward(batch, features, cache_))
        assert found[-1][1].shape == (10, target.vocabulary)
    assert type(runner) is NativeFeatureRunner
    for theirs, ours in zip(*found, strict=True):
        assert_alike(theirs, ours)


@pytest.mark.parametrize("name", ["dspark", "dflash"])
def test_block_runners_answer_alike_in_the_targets_tokens(name: str) -> None:
    target, found = tiny_native(), []
    for runner in BlockRunner(network(name), target), block_runner(network(name), target):
        cache_ = new_cache()
        contexts = [SequenceRows(key, 0, tuple(range(1, count)), None) for key, count in (("a", 9), ("b", 5))]
        batch = batch_of(cache_, *contexts)
        runner.extend(batch, [numbers(len(batch.tokens), 32, seed) for seed in range(2)], cache_)
        blocks = [SequenceRows(each.key, each.rows, (7, 0, 0, 0), None, together=True) for each in contexts]
        block, previous = runner.block(batch_of(cache_, *blocks), cache_), torch.tensor([3, 8])
        found.append([block.logits(slot, previous).clone() for slot in range(runner.drafts)])
        found[-1].append(block.confidence(1, previous))
        assert found[-1][0].shape == (2, target.vocabulary)
    assert type(runner) is NativeBlockRunner
    for theirs, ours in zip(*found, strict=True):
        assert_alike(theirs, ours)


def test_without_kernels_or_on_another_device_heads_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_native()
    elsewhere = Wrapped(target)
    elsewhere.device = torch.device("meta")
    assert type(feature_runner(network("eagle"), elsewhere)) is FeatureRunner  # type: ignore[arg-type]
    monkeypatch.setattr(heads_native, "cpu", None)
    assert type(feature_runner(network("eagle"), target)) is FeatureRunner
    assert type(block_runner(network("dspark"), target)) is BlockRunner


def test_a_block_sees_itself_and_a_context_whose_keys_were_given() -> None:
    """A block drafter: every layer's keys of the context come from the same rows, and a block's rows see each other."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        head = DSparkHead(DSPARK).requires_grad_(False)
    made = Stack(head.parts())
    context, rows = numbers(9, WIDTH, 1), numbers(4, WIDTH, 2)
    ours, theirs = new_cache(), new_cache()
    before = SequenceRows("a", 0, tuple(range(9)), None)
    block = SequenceRows("a", 9, (1, 2, 3, 4), None, all_logits=True, together=True)
    made.write_keys(context, batch_of(ours, before), ours)
    answers, logits = made.forward(rows, None, batch_of(ours, block), ours)
    batch = batch_of(theirs, before)
    plan = PassPlan(batch, theirs)
    for key, value in head.context(context[None], batch.positions[None]):
        plan.write(key, value)
    batch = batch_of(theirs, block)
    attends = [attend_by(PassPlan(batch, theirs))] * DSPARK.blocks
    expected = head(rows[None], batch.positions[None], attends, lambda final: final)
    for found, due in ((answers, expected.hidden), (logits, expected.logits)):
        assert float((found - due[0, 0]).abs().max()) < 0.005 * float(due.std())
    apart = made.forward(rows, None, batch_of(ours, block._replace(together=False)), ours)[0]
    assert float((apart - answers)[:3].abs().max()) > 0.05 * float(answers.std()), "negative control"


def test_what_does_not_fit_is_refused() -> None:
    made, cache_ = stack("eagle3"), new_cache()
    batch, rows = batch_of(cache_, SequenceRows("a", 0, (1, 2), None)), numbers(2, WIDTH, 1)
    decoder = made._decoder
    with pytest.raises(ValueError, match="shape"):
        made.forward(rows, numbers(2, 32, 1), batch, cache_)
    with pytest.raises(ValueError, match="shape"):
        made.forward(rows[:1], rows, batch, cache_)
    with pytest.raises(ValueError, match="without the matrix"):
        decoder.embed(batch.tokens.numpy(), rows.numpy())
    with pytest.raises(ValueError, match="beside"):
        made.write_keys(rows, batch, cache_)
    with pytest.raises(ValueError, match="beside"):
        made.forward(rows, None, batch, cache_)
