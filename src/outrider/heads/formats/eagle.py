"""EAGLE-1 and EAGLE-2 as their authors publish them: https://github.com/SafeAILab/EAGLE, ``cnets1.py``.

``config.json`` is a Llama's with one layer; the weights are ``fc`` on [embedding; feature], blocks of which the first
has no norm before attention, and an embedding that is a copy of the target's.  The feature is what the target's LM head
reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.eagle import EagleConfig
from outrider.heads.formats._shapes import (
    block_shape,
    known_vocabulary,
    own_embedding_rows,
    refuse,
    renamed,
    size,
    told_block,
)
from outrider.heads.formats.base import Exported, Format, Source

TO: Final = "the EAGLE format"


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    plain = {name.removeprefix("model.") for name in names}
    others = {"hidden_norm.weight", "layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight"}
    return (
        "speculators_model_type" not in told
        and {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= plain
        and not plain & others
    )


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told, name = source.told, source.name
    weights = renamed(source.files.read(source.files.names), lambda key: key.removeprefix("model."))
    shape = block_shape(told, weights, "layers.0.")
    if (found := size(name, weights, "fc.weight")) != (shape.width, 2 * shape.width):
        raise ModelError(f"{name}: 'fc.weight' has the shape {list(found)} instead of {[shape.width, 2 * shape.width]}")
    vocabulary = told.number("vocab_size")
    config = EagleConfig(
        block=shape,
        hidden_layers=(),
        blocks=told.number("num_hidden_layers", 1),
        joint_bias="fc.bias" in weights,
        first_norm="layers.0.input_layernorm.weight" in weights,
        embedding=own_embedding_rows(name, weights, (vocabulary, shape.width), shape.width),
    )
    target = TargetFacts(width=shape.width, vocabulary=vocabulary)
    return HeadCheckpoint("eagle", config, target, weights, name=name, layers_of=final_rows)


def final_rows(layers: int) -> tuple[int, ...]:
    """The layer number of the rows after the final norm."""
    return (layers,)


def write(checkpoint: HeadCheckpoint, to: str) -> Exported:
    """Write a head in this format."""
    config: EagleConfig = checkpoint.config
    shape, vocabulary = config.block, known_vocabulary(checkpoint)
    refuse(
        checkpoint,
        TO,
        {
            "a norm before the first block's attention": config.first_norm,
            "norms of each head's queries and keys": shape.head_norms,
            "a bias of what attention answers": shape.output_bias,
            f"heads of {shape.head_width} where {shape.width} / {shape.heads} is due": (
                shape.head_width * shape.heads != shape.width
            ),
            f"hidden rows of layer {config.hidden_layers[0]}, but only for those after the final norm": (
                checkpoint.target.layers > 0 and config.hidden_layers != final_rows(checkpoint.target.layers)
            ),
            f"the rotation {shape.rope.get('rope_type')}": shape.rope.get("rope_type", "default") != "default",
        },
    )
    told = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **told_block(shape, config.blocks, vocabulary),
        "bias": config.joint_bias,
        "qkv_bias": shape.projection_bias,
        "pretraining_tp": 1,
    }
    return Exported(told, checkpoint.tensors)


FORMAT: Final = Format("EAGLE-1 and EAGLE-2", recognises, read, "eagle", ("eagle",), write)
