"""DSpark and DFlash with a Qwen3-like ``config.json``: DeepSpec's, SpecForge's and z-lab's.

Sources: https://github.com/deepseek-ai/DeepSpec, https://github.com/sgl-project/SpecForge,
https://github.com/z-lab/dflash.  All number target layers by their outputs, as we do.  Some keys that DeepSpec has at
the top level are in ``dflash_config`` in the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.dspark import DSparkConfig
from outrider.heads.formats._dspark_layout import CORRECTIONS, DSparkFacts, left_out, read_head, written
from outrider.heads.formats._shapes import known_vocabulary, refuse, told_block
from outrider.heads.formats._untrusted_config import UntrustedConfig
from outrider.heads.formats.base import Exported, Format, Source

_ANCHORED: Final = "DSpark"
"""Part of a network's name if the anchor's slot drafts the first token."""
_HEADS: Final = {"", "dspark"}
"""Supported values of ``projector_type``, which names what follows the blocks."""


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    return "speculators_model_type" not in told and {
        "hidden_norm.weight",
        "fc.weight",
        "layers.0.self_attn.q_proj.weight",
    } <= set(names)


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told = source.told.part("dflash_config").over(source.told)
    _check_served(told)
    architectures = source.told.texts("architectures")
    anchored = any(_ANCHORED in name for name in architectures)
    reading = DSparkFacts(
        network=source.told,
        layers=_layers(told),
        slots=told.number("block_size"),
        mask_id=told.number("mask_token_id", low=0),
        draft_from_anchor=told.flag("shift_label", anchored),
        target=TargetFacts(layers=told.number("num_target_layers", 0, low=0)),
    )
    return read_head(source, reading)


def _check_served(told: UntrustedConfig) -> None:
    projector, mode = told.text("projector_type"), told.text("attention_mode", "gqa")
    if projector not in _HEADS | {"dflash"}:
        raise ModelError(f"{told.name}: its projector type is {projector!r}, which heads do not support")
    if mode not in ("gqa", "mha") or told.flag("causal") or told.says("attention_modes"):
        raise ModelError(f"{told.name}: its attention does not let all slots of a block see each other")


def _layers(told: UntrustedConfig) -> tuple[int, ...]:
    """Target layers, by their outputs.

    By default they are spread evenly from the second to the third from the end.  The last block's output comes from
    transformers' ``hidden_states``, which holds it after the final norm.
    """
    depth = told.number("num_target_layers", 0, low=0)
    if not told.says("target_layer_ids"):
        return _spread(told.number("num_target_layers", low=4), told.number("num_hidden_layers"))
    layers = told.numbers("target_layer_ids")
    if min(layers) < 0:
        raise ModelError(f"{told.name}: it reads the target's embedding, but heads read outputs of blocks")
    last = depth - 1 if depth and not told.says("projector_type") else -1
    return tuple(depth if layer == last else layer for layer in layers)


def _spread(depth: int, count: int) -> tuple[int, ...]:
    if count == 1:
        return (depth // 2,)
    return tuple(round(1 + place * (depth - 4) / (count - 1)) for place in range(count))


def write(checkpoint: HeadCheckpoint, to: str) -> Exported:
    """Write a head in this format."""
    config: DSparkConfig = checkpoint.config
    vocabulary, corrected = known_vocabulary(checkpoint), config.correction in CORRECTIONS
    refuse(
        checkpoint,
        f"the block format of {to}",
        {
            "a reduced draft vocabulary or an LM head of its own": config.vocabulary > 0,
            f"the correction {config.correction!r}": corrected and CORRECTIONS[config.correction] != "vanilla",
            "queries and keys without norms": not config.block.head_norms,
            f"rows of {config.block.width} for a target whose are {config.target_width}": (
                config.target_width not in (0, config.block.width)
            ),
            "rows after the target's final norm": checkpoint.target.layers in config.hidden_layers,
            "an embedding of its own": config.embedding > 0,
            "a target of unknown depth": not checkpoint.target.layers,
            "confidences without a correction": config.confidence and not corrected,
            "a correction after slots that begin behind the anchor": corrected and not config.draft_from_anchor,
            "slots that begin at the anchor, without a correction": config.draft_from_anchor and not corrected,
        },
    )
    inner: dict[str, Any] = {"mask_token_id": config.mask_id, "target_layer_ids": list(config.hidden_layers)}
    if corrected:
        inner |= {
            "projector_type": "dspark",
            "attention_mode": "gqa",
            "markov_rank": config.rank,
            "markov_head_type": CORRECTIONS[config.correction],
            "enable_confidence_head": config.confidence,
            "confidence_head_with_markov": config.confidence_reads_correction,
        }
    told = {
        "architectures": ["DSparkDraftModel" if corrected else "DFlashDraftModel"],
        "model_type": "qwen3",
        **told_block(config.block, config.blocks, vocabulary),
        "layer_types": ["full_attention"] * config.blocks,
        "block_size": config.slots,
        "num_target_layers": checkpoint.target.layers,
        "dflash_config": inner,
    }
    return Exported(told, written(checkpoint), left_out(config))


FORMAT: Final = Format(
    "DSpark and DFlash (DeepSpec, SpecForge, z-lab)", recognises, read, "dspark", ("specforge",), write
)
