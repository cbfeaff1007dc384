"""EAGLE-3 with a Llama-like ``config.json``: its authors', SpecForge's and DeepSpec's.

Sources: https://github.com/SafeAILab/EAGLE (``cnets.py``), https://github.com/sgl-project/SpecForge
(``llama3_eagle.py``), https://github.com/deepseek-ai/DeepSpec.  SpecForge's ``eagle_config`` and DeepSpec's
``target_layer_ids`` name layers by their outputs, as we do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.heads.eagle3 import Eagle3Config
from outrider.heads.formats._eagle3_layout import Eagle3Facts, read_head, usual_layers, written
from outrider.heads.formats._shapes import known_vocabulary, refuse, told_block
from outrider.heads.formats.base import Exported, Format, Source

SPECFORGE: Final = "specforge"


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    plain = {name.removeprefix("model.") for name in names}
    return "speculators_model_type" not in told and bool(
        plain & {"midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"}
    )


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told = source.told
    if (blocks := told.number("num_hidden_layers", 1)) != 1:
        raise ModelError(f"{source.name}: it has {blocks} blocks, but EAGLE-3 heads have one")
    named = told.part("eagle_config")
    if named.says("eagle_aux_hidden_state_layer_ids"):
        layers = named.numbers("eagle_aux_hidden_state_layer_ids")
    elif told.says("target_layer_ids"):
        layers = told.numbers("target_layer_ids")
    else:
        return read_head(source, Eagle3Facts(told, layers_of=usual_layers))
    return read_head(source, Eagle3Facts(told, layers))


def write(checkpoint: HeadCheckpoint, to: str) -> Exported:
    """Write a head in this format."""
    config: Eagle3Config = checkpoint.config
    vocabulary = known_vocabulary(checkpoint)
    refuse(
        checkpoint,
        f"the EAGLE-3 format of {to}",
        {
            "a residual stream that starts from the normed feature": config.norm_before_residual,
            "norms of each head's queries and keys": config.block.head_norms,
            "one norm over the joined features": config.joined_norm,
            "a bias of the fused features": config.fusion_bias,
            "drafting through the target's LM head": not config.vocabulary,
            f"{len(config.hidden_layers)} target layers, but only for three": len(config.hidden_layers) != 3,
            "EAGLE-3.1's norms": to != SPECFORGE and (config.feature_norms or config.norm_output),
            "rows after the target's final norm": checkpoint.target.layers in config.hidden_layers,
        },
    )
    told = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **told_block(config.block, 1, vocabulary),
        "draft_vocab_size": config.vocabulary,
        "target_hidden_size": config.target_width or config.block.width,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(config.hidden_layers),
            "use_aux_hidden_state": True,
        },
        "pretraining_tp": 1,
    }
    # Readers of the older format do not know these two.
    newer = {"fc_norm": config.feature_norms, "norm_output": config.norm_output}
    return Exported(told | {key: value for key, value in newer.items() if value}, written(checkpoint, "midlayer."))


FORMAT: Final = Format(
    "EAGLE-3 (its authors', SpecForge, DeepSpec)", recognises, read, "eagle3", ("eagle", SPECFORGE), write
)
