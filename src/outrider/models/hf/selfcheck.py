"""Compare an unverified model with its own eager attention, on a few tokens, when it is loaded.

Two short texts run through a flat pass with siblings; then each row's path runs alone through the unmodified model.
Sliding windows are shortened meanwhile.  The allowed difference follows from a control: the same rows, each without its
parent.  This costs about eight passes of a few rows, only for classes outside :mod:`outrider.models.hf.verified`.
"""

from __future__ import annotations

from typing import Final

import torch

from outrider.errors import ModelError
from outrider.kv.pool import PagedCache
from outrider.models.base import TargetModel
from outrider.models.hf import transformers_api
from outrider.tree import SequenceRows, TreeBatch, TreeBuilder

_SHARE: Final = 0.1
"""Allowed share of the control's difference: a row with a wrong set of keys differs by about the control."""
_NOISE: Final = 0.01
"""Allowed share of the logits' spread: half precision differs by as much without a fault."""

_WINDOW: Final = 4
"""Length of sliding windows and chunks meanwhile, shorter than the longer text."""


def compare_with_eager(model: TargetModel, module: torch.nn.Module, architecture: str) -> None:
    """Compare a model with our attention to the same module with its own eager attention.

    Raises:
        ModelError: they differ by more than rounding; the message names the architecture.
    """
    sequences = [_rows("long", 7, model.vocabulary), _rows("short", 2, model.vocabulary)]
    with transformers_api.short_windows(module, _WINDOW):
        ours, denied = (_flat_logits(model, sequences, deny_parents) for deny_parents in (False, True))
        with transformers_api.eager_attention(module):
            alone = torch.stack([_plain_logits(model, module, path) for item in sequences for path in _paths(item)])
    error, control = (float((logits - alone).abs().max()) for logits in (ours, denied))
    allowed = max(_SHARE * control, _NOISE * float(alone.std()))
    if not error <= allowed:
        raise ModelError(
            f"{architecture} is not among the verified classes, and tree rows differ from its own eager attention by "
            f"{error:.2g} where rounding explains {allowed:.2g}, so it cannot be served"
        )


def _rows(key: str, length: int, vocabulary: int) -> SequenceRows:
    """Rows of a text, with two siblings below its last token and a child of each."""
    tokens = [(7 * index + 3) % vocabulary for index in range(length + 5)]
    builder = TreeBuilder(tokens[length])
    left, right = (builder.add(0, tokens[length + step]) for step in (1, 2))
    builder.add(left, tokens[length + 3])
    builder.add(right, tokens[length + 4])
    return SequenceRows(key, 0, tuple(tokens[:length]), builder.build())


def _paths(sequence: SequenceRows) -> list[list[int]]:
    assert sequence.tree is not None
    return [[*sequence.forced, sequence.tree.tokens[0], *path] for path in sequence.tree.paths]


def _flat_logits(model: TargetModel, sequences: list[SequenceRows], deny_parents: bool) -> torch.Tensor:
    """Logits [tree rows, vocabulary] of one flat pass over all sequences."""
    batch, cache = TreeBatch.pack(sequences, model.device), PagedCache(pages=8, page_size=4)
    for index, sequence in enumerate(sequences):
        cache.extend(sequence.key, sequence.rows)
        assert sequence.tree is not None
        if deny_parents:
            visible, forced = batch.visible(index), len(sequence.forced)
            for node in range(1, len(sequence.tree)):
                visible[forced + node, forced + sequence.tree.parents[node]] = False
    return model.forward(batch, cache).logits.float()


def _plain_logits(model: TargetModel, module: torch.nn.Module, path: list[int]) -> torch.Tensor:
    """Logits [vocabulary] after a path, by the unmodified model."""
    with torch.inference_mode():
        tokens = torch.tensor([path], device=model.device)
        logits: torch.Tensor = module(input_ids=tokens, use_cache=False).logits[0, -1]
    return logits.float()
