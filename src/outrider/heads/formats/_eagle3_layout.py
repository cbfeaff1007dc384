"""EAGLE-3 weights, which several formats name alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.eagle3 import Eagle3Config
from outrider.heads.formats._shapes import (
    Weights,
    block_shape,
    draft_vocabulary,
    own_embedding_rows,
    renamed,
    size,
    told_ids,
    with_biases,
)
from outrider.heads.formats._untrusted_config import UntrustedConfig
from outrider.heads.formats.base import Source

_NAMES = {"fc_norm.": "feature_norms.", "input_norm.": "joined_norm.", "layers.0.": "midlayer."}


@dataclass(frozen=True)
class Eagle3Facts:
    """Values of a format's configuration."""

    network: UntrustedConfig
    """The block's configuration."""
    layers: tuple[int, ...] = ()
    """Target layers to read, in our numbering; empty if they follow from the target's depth."""
    layers_of: Callable[[int], tuple[int, ...]] | None = None
    target: str = ""


def usual_layers(layers: int) -> tuple[int, ...]:
    """Default layers: the inputs of layers 2, L // 2 and L − 3, so the outputs of those before them."""
    return (1, layers // 2 - 1, layers - 4)


def read_head(source: Source, reading: Eagle3Facts) -> HeadCheckpoint:
    """Make a head from its weights and its configuration.

    Raises:
        ModelError: they disagree.
    """
    told, name = source.told, source.name
    weights = renamed(source.files.read(source.files.names), _ours)
    shape = block_shape(reading.network, weights, "midlayer.")
    vocabulary = reading.network.number("vocab_size")
    places = len(reading.layers) or len(usual_layers(0))
    rows, columns = size(name, weights, "fc.weight")
    read = columns // places
    due = told.number("target_hidden_size", reading.network.number("target_hidden_size", shape.width))
    if rows != shape.width or columns != places * due:
        raise ModelError(
            f"{name}: 'fc.weight' has the shape {[rows, columns]} instead of {[shape.width, places * due]}: "
            f"{places} layers of {due}"
        )
    drafted = draft_vocabulary(name, weights, vocabulary)
    if drafted and (said := told.number("draft_vocab_size", drafted, low=0)) != drafted:
        raise ModelError(f"{name}: 'draft_vocab_size' says {said}, and its LM head has {drafted} rows")
    config = Eagle3Config(
        block=shape,
        hidden_layers=reading.layers,
        vocabulary=drafted,
        target_width=read,
        norm_before_residual=told.flag("norm_before_residual"),
        feature_norms=any(key.startswith("feature_norms.") for key in weights),
        norm_output=told.flag("norm_output"),
        joined_norm="joined_norm.weight" in weights,
        fusion_bias="fc.bias" in weights,
        embedding=own_embedding_rows(name, weights, (vocabulary, shape.width), read),
    )
    target = TargetFacts(reading.target, read, 0, vocabulary)
    return HeadCheckpoint("eagle3", config, target, weights, name=name, layers_of=reading.layers_of)


def _ours(name: str) -> str:
    plain = name.removeprefix("model.")
    return next(
        (ours + plain.removeprefix(theirs) for theirs, ours in _NAMES.items() if plain.startswith(theirs)), plain
    )


def written(checkpoint: HeadCheckpoint, block: str) -> Weights:
    """Rename the weights to the formats' names; ``block`` is the prefix of its block's names."""
    back = {ours: theirs for theirs, ours in _NAMES.items()} | {"midlayer.": block}

    def theirs(name: str) -> str:
        return next((their + name.removeprefix(our) for our, their in back.items() if name.startswith(our)), name)

    weights = renamed({name: tensor for name, tensor in checkpoint.tensors.items() if name != "ids"}, theirs)
    if checkpoint.config.vocabulary:
        weights |= told_ids(checkpoint)
    return with_biases(weights, checkpoint.config.block)
