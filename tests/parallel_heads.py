"""Random Medusa and blockwise heads for tiny targets, as checkpoints a drafter loads."""

from __future__ import annotations

import torch
from tiny import VOCABULARY

from outrider.heads.blockwise import BlockwiseConfig, BlockwiseHead
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.medusa import MedusaConfig, MedusaHead
from outrider.models.base import TargetModel

DEPTHS = 3
SOME = torch.arange(1, VOCABULARY, 2)


def checkpoint(method: str, target: TargetModel, *, reduced: bool = True, chances: bool = False) -> HeadCheckpoint:
    """A head that starts as the target's own LM head and is moved a little, so that some guesses are right."""
    ids = SOME if reduced else torch.arange(target.vocabulary)
    head: MedusaHead | BlockwiseHead
    if method == "medusa":
        shape = ((0.5, 0.3, 0.2), (0.4, 0.3, 0.1), (0.2, 0.1, 0.0)) if chances else ()
        config = MedusaConfig(target.width, len(ids), DEPTHS, chances=shape)
        head = MedusaHead.initial(config, target, ids)
    else:
        head = BlockwiseHead.initial(BlockwiseConfig(target.width, len(ids), DEPTHS), target, ids)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return HeadCheckpoint(method, head.config, TargetFacts.of(target), head.state_dict())
