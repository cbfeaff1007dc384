"""A random head for each method that drafts with one, as its recipe would begin it on a tiny target."""

from __future__ import annotations

import torch
from tiny import VOCABULARY

from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.models.base import TargetModel
from outrider.train.recipes.base import recipe_class, trainable

SOME = torch.arange(0, VOCABULARY, 2)
TRAINED_AS = {"eagle2": "eagle"}
"""Methods that draft with another one's head."""


def tiny_head(method: str, target: TargetModel) -> HeadCheckpoint:
    """Weights moved off their beginning, so that depths differ, and a vocabulary of every other token."""
    trained = TRAINED_AS.get(method, method)
    assert trained in trainable(), f"{method} drafts with a head that no recipe trains"
    head = recipe_class(trained)().head(target, torch.arange(0, target.vocabulary, 2), seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    kind = type(head).__module__.rpartition(".")[2]
    return HeadCheckpoint(kind, head.config, TargetFacts.of(target), head.state_dict())
