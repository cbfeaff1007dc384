"""EAGLE-3 in the format of vLLM's ``speculators``: https://github.com/vllm-project/speculators.

Its ids of target layers number the inputs of blocks, so they are one larger than ours; 0 is the embedding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.heads.eagle3 import Eagle3Config
from outrider.heads.formats._eagle3_layout import Eagle3Facts, read_head, usual_layers, written
from outrider.heads.formats._shapes import known_vocabulary, refuse, told_block
from outrider.heads.formats._speculators import TO, layers_of_ids, network, told_speculator, verifier
from outrider.heads.formats.base import Exported, Format, Source

KIND: Final = "eagle3"
_STEPS: Final = 4


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    return told.get("speculators_model_type") == KIND


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told, inner = source.told, network(source.told)
    if (blocks := inner.number("num_hidden_layers", 1)) != 1:
        raise ModelError(f"{source.name}: it has {blocks} blocks, but EAGLE-3 heads have one")
    layers = layers_of_ids(told, "eagle_aux_hidden_state_layer_ids")
    return read_head(source, Eagle3Facts(inner, layers, None if layers else usual_layers, verifier(told)))


def write(checkpoint: HeadCheckpoint, to: str) -> Exported:
    """Write a head in this format."""
    config: Eagle3Config = checkpoint.config
    shape, vocabulary = config.block, known_vocabulary(checkpoint)
    read_width = config.target_width or shape.width
    refuse(
        checkpoint,
        TO,
        {
            f"rows of {shape.width} for a target whose are {read_width}": read_width != shape.width,
            "a bias of the fused features": config.fusion_bias,
            "drafting through the target's LM head": not config.vocabulary,
            "rows after the target's final norm": checkpoint.target.layers in config.hidden_layers,
        },
    )
    told = {
        **told_speculator(checkpoint, KIND, ["Eagle3Speculator"], _STEPS),
        "transformer_layer_config": {
            "model_type": "qwen3" if shape.head_norms else "llama",
            **told_block(shape, 1, vocabulary),
        },
        "draft_vocab_size": config.vocabulary,
        "target_hidden_size": read_width,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.joined_norm,
        "fc_norm": config.feature_norms,
        "norm_output": config.norm_output,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.hidden_layers],
    }
    weights = written(checkpoint, "layers.0.")
    if config.vocabulary == vocabulary:
        weights = {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d")}
    return Exported(told, weights)


FORMAT: Final = Format("speculators' EAGLE-3", recognises, read, KIND, ("speculators",), write)
