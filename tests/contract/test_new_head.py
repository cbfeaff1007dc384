"""A trained drafter is one head file and one drafter file: one that nobody knows runs, natively where it has parts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import tiny_model, tiny_native

from contract.cases import PROMPTS
from outrider import LLM, SamplingParams, Speculation, drafters, heads
from outrider.drafters import base
from outrider.heads.blocks import BlockShape
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts, write_head
from outrider.heads.native import NativeFeatureRunner
from outrider.heads.runner import FeatureRunner
from outrider.kernels.native import cpu, missing
from outrider.kv.pool import KVPool
from outrider.models.base import TargetModel
from outrider.tree import SequenceRows, TreeBatch, root_only

HEAD = '''
"""Two blocks behind a projection, with a final norm and an LM head of its own: what no head here has all of."""

from dataclasses import dataclass

import torch
from torch import nn

from outrider.heads.blocks import BlockShape, DecoderBlock, HeadParts, Rotary


@dataclass(frozen=True)
class ToyConfig:
    block: BlockShape
    hidden_layers: tuple[int, ...]
    vocabulary: int
    native: bool
    blocks: int = 2


class ToyHead(nn.Module):
    ids = embed_tokens = None

    def __init__(self, config):
        super().__init__()
        self.config, shape = config, config.block
        self.fc = nn.Linear(2 * shape.width, shape.width)
        self.layers = nn.ModuleList(DecoderBlock(shape) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(shape.width, shape.norm_epsilon)
        self.lm_head = nn.Linear(shape.width, config.vocabulary, bias=False)
        self.rotary = Rotary(shape)

    def fuse(self, features):
        return sum(features)

    def forward(self, embeddings, features, positions, attend):
        rows, turns = self.fc(torch.cat((embeddings, features), dim=-1)), self.rotary(positions)
        for layer in self.layers:
            rows = layer(rows, turns, attend)
        return self.norm(rows)

    def logits(self, features, unembed):
        return self.lm_head(features)

    def parts(self):
        blocks = [layer.parts for layer in self.layers]
        made = HeadParts(
            self.config.block,
            self.rotary.rotation,
            blocks,
            entry=self.fc,
            final_norm=self.norm,
            lm_head=self.lm_head,
            answers_normed=True,
        )
        return made if self.config.native else None


CONFIG, HEAD = ToyConfig, ToyHead
'''
DRAFTER = '''
"""Drafts with it."""

from dataclasses import dataclass
from typing import ClassVar

from outrider.drafters._feature_drafter import feature_drafter
from outrider.drafters._growth import DynamicTree
from outrider.drafters._trained import TreeOptions
from outrider.drafters.base import register


@register
@dataclass(frozen=True)
class Toy(TreeOptions):
    method: ClassVar[str] = "toy"
    kind: ClassVar[str] = "toy"

    def build(self, workbench):
        return feature_drafter(workbench, self, DynamicTree(self.topk))
'''
RUNNERS = {True: NativeFeatureRunner, False: FeatureRunner}


@pytest.fixture(autouse=True)
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The head and its drafter, each in its package; both are forgotten afterwards."""
    for package, text in ((heads, HEAD), (drafters, DRAFTER)):
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / "toy.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    importlib.invalidate_caches()
    yield
    base.REGISTRY.pop("toy", None)
    for package in (heads, drafters):
        sys.modules.pop(f"{package.__name__}.toy", None)
        vars(package).pop("toy", None)


def toy(target: TargetModel, *, native: bool) -> HeadCheckpoint:
    """A head with random weights."""
    module = importlib.import_module("outrider.heads.toy")
    shape = BlockShape(width=target.width, heads=4, key_heads=2, head_width=8, inner=48, positions=512)
    config = module.CONFIG(shape, (1, target.layers), target.vocabulary, native)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        head = module.HEAD(config)
    return HeadCheckpoint("toy", config, TargetFacts.of(target), head.state_dict())


@pytest.mark.parametrize("chosen", ["toy", "auto"])
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("make", [tiny_native, tiny_model])
def test_an_unknown_head_drafts(make, native: bool, topk: int, chosen: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target, folder = make(0), tmp_path / "head"
    write_head(folder, toy(target, native=native))
    plan = Speculation(chosen, options={"topk": topk, "min_survival": 0.0}).drafting_with(folder, "head")
    llm, plain = LLM.from_model(target, speculation=plan), LLM.from_model(target, speculation=None)
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=3)
    found, due = llm.generate(PROMPTS, params), plain.generate(PROMPTS, params)
    assert [one.token_ids for one in found] == [one.token_ids for one in due]
    assert all(sum(one.speculation.drafted) > 0 for one in found)


@pytest.mark.skipif(cpu is None, reason=f"{missing}")
@pytest.mark.parametrize("native", [True, False])
def test_it_runs_natively_where_it_says_what_it_is_made_of(native: bool) -> None:
    from outrider.heads.native import feature_runner

    target, found = tiny_native(0), []
    features = torch.randn(9, target.width, generator=torch.Generator().manual_seed(1))
    for make in (feature_runner, FeatureRunner):
        runner, cache = make(toy(target, native=native).build(), target), KVPool(64, 16).cache("head")
        cache.extend("a", 9)
        batch = TreeBatch.pack([SequenceRows("a", 0, tuple(range(8)), root_only(8), all_logits=True)])
        found.append((type(runner), *runner.forward(batch, features, cache)))
    (ours, *mine), (_, *theirs) = found
    assert ours is RUNNERS[native]
    for one, other in zip(mine, theirs, strict=True):
        assert float((one - other).abs().max()) <= 0.06 * float(other.std()), "rows are rounded to int8, no more"
