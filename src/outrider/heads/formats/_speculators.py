"""What the formats of vLLM's ``speculators`` have in common: https://github.com/vllm-project/speculators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from outrider.errors import ConfigError, ModelError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.heads.formats._untrusted_config import UntrustedConfig

TO: Final = "the speculators format"
_VERSION: Final = "0.9.0"


def network(told: UntrustedConfig) -> UntrustedConfig:
    """The configuration of the blocks.

    Raises:
        ModelError: there is none.
    """
    if not told.says("transformer_layer_config"):
        raise ModelError(f"{told.name}: its configuration does not say 'transformer_layer_config'")
    return told.part("transformer_layer_config")


def verifier(told: UntrustedConfig) -> str:
    """What the target is called."""
    return told.part("speculators_config").part("verifier").text("name_or_path")


def layers_of_ids(told: UntrustedConfig, key: str) -> tuple[int, ...]:
    """Target layers as we count them, by their outputs; empty where nothing is said.

    Raises:
        ModelError: the embedding is among them.
    """
    if not told.says(key):
        return ()
    ids = told.numbers(key)
    if min(ids) < 1:
        raise ModelError(
            f"{told.name}: {key!r} names layer {min(ids)}, and heads here read outputs of blocks: from 1 on"
        )
    return tuple(each - 1 for each in ids)


def told_speculator(checkpoint: HeadCheckpoint, kind: str, architectures: Sequence[str], drafts: int) -> dict[str, Any]:
    """What every configuration of the format begins with.

    Args:
        checkpoint: the head.
        kind: the format's word for it.
        architectures: the format's words for its network.
        drafts: tokens drafted per round.

    Raises:
        ConfigError: the head does not say what its target is called, which readers of the format fetch weights from.
    """
    if not checkpoint.target.name:
        raise ConfigError(
            f"{checkpoint.name} cannot be exported: {TO} needs the target's Hugging Face name or folder, from which "
            "its readers take the embedding; give it with --verifier"
        )
    return {
        "architectures": list(architectures),
        "speculators_model_type": kind,
        "speculators_version": _VERSION,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafts}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": checkpoint.target.name, "architectures": []},
        },
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
