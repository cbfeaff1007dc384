"""DSpark and DFlash in the format of vLLM's ``speculators``: https://github.com/vllm-project/speculators.

Its ids of target layers are one larger than ours.  A full vocabulary is drafted through the target's LM head, a reduced
one through a head of its own; a correction follows the target's ids and moves the draft's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.dspark import DSparkConfig
from outrider.heads.formats._dspark_layout import CORRECTIONS, DSparkFacts, left_out, read_head, written
from outrider.heads.formats._shapes import known_vocabulary, refuse, told_block, told_ids
from outrider.heads.formats._speculators import TO, layers_of_ids, network, told_speculator, verifier
from outrider.heads.formats.base import Exported, Format, Source

KINDS: Final = ("dspark", "dflash")
"""The format's words for blocks with a correction or confidences, and for those without."""


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    return told.get("speculators_model_type") in KINDS


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told = source.told
    layers = layers_of_ids(told, "aux_hidden_state_layer_ids")
    if not layers:
        raise ModelError(f"{source.name}: its configuration has no 'aux_hidden_state_layer_ids'")
    reading = DSparkFacts(
        network=network(told),
        layers=layers,
        slots=told.number("block_size", 8),
        mask_id=told.number("mask_token_id", low=0),
        draft_from_anchor=told.flag("sample_from_anchor", told.text("speculators_model_type") == KINDS[0]),
        target=TargetFacts(verifier(told)),
    )
    return read_head(source, reading)


def write(checkpoint: HeadCheckpoint, to: str) -> Exported:
    """Write a head in this format."""
    config: DSparkConfig = checkpoint.config
    shape, vocabulary = config.block, known_vocabulary(checkpoint)
    corrected = config.correction in CORRECTIONS
    refuse(
        checkpoint,
        TO,
        {
            "an LM head of its own for the whole vocabulary": config.vocabulary == vocabulary,
            "queries and keys without norms": not shape.head_norms,
            f"rows of {shape.width} for a target whose are {config.target_width}": (
                config.target_width not in (0, shape.width)
            ),
            "rows after the target's final norm": checkpoint.target.layers in config.hidden_layers,
            "an embedding of its own": config.embedding > 0,
        },
    )
    kind = KINDS[0] if corrected or config.confidence else KINDS[1]
    told = {
        **told_speculator(
            checkpoint, kind, ["DSparkSpeculator" if kind == KINDS[0] else "DFlashSpeculator"], config.drafts
        ),
        "transformer_layer_config": {
            "model_type": "qwen3",
            **told_block(shape, config.blocks, vocabulary),
            "layer_types": ["full_attention"] * config.blocks,
        },
        "draft_vocab_size": config.vocabulary or vocabulary,
        "block_size": config.slots,
        "target_hidden_size": shape.width,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.hidden_layers],
        "mask_token_id": config.mask_id,
        "sample_from_anchor": config.draft_from_anchor,
    }
    if kind == KINDS[0]:
        told |= {
            "markov_rank": config.rank if corrected else 0,
            "markov_head_type": CORRECTIONS.get(config.correction, "vanilla"),
            "enable_confidence_head": config.confidence,
            "confidence_head_with_markov": config.confidence_reads_correction,
        }
    weights = written(checkpoint) | (told_ids(checkpoint) if config.vocabulary else {})
    return Exported(told, weights, left_out(config))


FORMAT: Final = Format("speculators' DSpark and DFlash", recognises, read, "dspark", ("speculators",), write)
