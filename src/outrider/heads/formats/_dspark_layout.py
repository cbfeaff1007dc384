"""DSpark and DFlash weights, which two formats name alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.dspark import DSparkConfig
from outrider.heads.formats._shapes import (
    Weights,
    block_shape,
    draft_vocabulary,
    own_embedding_rows,
    renamed,
    size,
    with_biases,
)
from outrider.heads.formats._untrusted_config import UntrustedConfig
from outrider.heads.formats.base import Source

CORRECTIONS: Final = {"markov": "vanilla", "gated": "gated", "rnn": "rnn"}
"""Our names of corrections to the formats'."""
_GATE, _JOINT, _PREVIOUS = (
    "markov_head.gate_proj.weight",
    "markov_head.joint_proj.weight",
    "markov_head.markov_w1.weight",
)
_CONFIDENCE: Final = "confidence_head.proj."
_OLDER: Final = {"logit_head.": "", "markov_w": "markov_head.markov_w", "confidence_proj.": _CONFIDENCE}
"""Name prefixes of older files to the current ones."""


@dataclass(frozen=True)
class DSparkFacts:
    """Values of a format's configuration."""

    network: UntrustedConfig
    """The blocks' configuration."""
    layers: tuple[int, ...]
    """Target layers to read, in our numbering."""
    slots: int
    mask_id: int
    draft_from_anchor: bool
    target: TargetFacts
    """Its width comes from the weights."""


def read_head(source: Source, reading: DSparkFacts) -> HeadCheckpoint:
    """Make a head from its weights and its configuration.

    Raises:
        ModelError: they disagree.
    """
    name, network = source.name, reading.network
    weights = renamed(source.files.read(source.files.names), _newer)
    shape = block_shape(network, weights, "layers.0.")
    vocabulary = network.number("vocab_size")
    rows, columns = size(name, weights, "fc.weight")
    if rows != shape.width or columns % len(reading.layers):
        raise ModelError(
            f"{name}: 'fc.weight' has the shape {[rows, columns]}, which {len(reading.layers)} target layers and rows "
            f"of {shape.width} do not make"
        )
    read = columns // len(reading.layers)
    drafted = draft_vocabulary(name, weights, vocabulary)
    correction, rank = _correction(name, weights)
    confidence = f"{_CONFIDENCE}weight" in weights
    config = DSparkConfig(
        block=shape,
        hidden_layers=reading.layers,
        blocks=network.number("num_hidden_layers"),
        slots=reading.slots,
        mask_id=reading.mask_id,
        vocabulary=drafted,
        target_width=read,
        target_vocabulary=vocabulary,
        draft_from_anchor=reading.draft_from_anchor,
        correction=correction,
        rank=rank,
        confidence=confidence,
        confidence_reads_correction=confidence and _reads_correction(name, weights, shape.width, rank),
        embedding=own_embedding_rows(name, weights, (vocabulary, shape.width), read),
    )
    if config.mask_id >= vocabulary or config.drafts < 1:
        raise ModelError(
            f"{name}: its mask is the token {config.mask_id} of {vocabulary}; its blocks draft {config.drafts} tokens"
        )
    facts = TargetFacts(reading.target.name, read, reading.target.layers, vocabulary)
    return HeadCheckpoint("dspark", config, facts, {_ours(key): tensor for key, tensor in weights.items()}, name=name)


def _newer(name: str) -> str:
    for older, newer in _OLDER.items():
        if name.startswith(older):
            name = newer + name.removeprefix(older)
    return name


def _ours(name: str) -> str:
    return name.replace(_CONFIDENCE, "confidence_head.")


def _correction(name: str, weights: Mapping[str, torch.Tensor]) -> tuple[str, int]:
    """Our name of the correction, and its rank."""
    if _PREVIOUS not in weights:
        return "independent", 0
    kind = "gated" if _GATE in weights else "rnn" if _JOINT in weights else "markov"
    return kind, size(name, weights, _PREVIOUS)[1]


def _reads_correction(name: str, weights: Mapping[str, torch.Tensor], width: int, rank: int) -> bool:
    columns = size(name, weights, f"{_CONFIDENCE}weight")[1]
    if columns not in (width, width + rank):
        raise ModelError(f"{name}: its confidence reads {columns} numbers instead of {width} or {width + rank}")
    return rank > 0 and columns == width + rank


def written(checkpoint: HeadCheckpoint) -> Weights:
    """Rename the weights to the formats' names, without those of a draft vocabulary."""
    weights = renamed(
        {name: tensor for name, tensor in checkpoint.tensors.items() if name != "ids"},
        lambda name: name.replace("confidence_head.", _CONFIDENCE),
    )
    return with_biases(weights, checkpoint.config.block)


def left_out(config: DSparkConfig) -> tuple[str, ...]:
    """What no format can hold."""
    return ("what confidences are divided by, slot by slot",) if config.temperatures else ()
