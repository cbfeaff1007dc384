"""Shared by the formats of vLLM's ``speculators``: https://github.com/vllm-project/speculators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from outrider.errors import ConfigError, ModelError
from outrider.heads.checkpoint import HeadCheckpoint
from outrider.heads.formats._untrusted_config import UntrustedConfig

TO: Final = "the speculators format"
_VERSION: Final = "0.9.0"


def network(told: UntrustedConfig) -> UntrustedConfig:
    """Configuration of the blocks.

    Raises:
        ModelError: there is none.
    """
    if not told.says("transformer_layer_config"):
        raise ModelError(f"{told.name}: its configuration has no 'transformer_layer_config'")
    return told.part("transformer_layer_config")


def verifier(told: UntrustedConfig) -> str:
    """Name of the target."""
    return told.part("speculators_config").part("verifier").text("name_or_path")


def layers_of_ids(told: UntrustedConfig, key: str) -> tuple[int, ...]:
    """Target layers in our numbering, by outputs; empty if there are none.

    Raises:
        ModelError: the embedding is among them.
    """
    if not told.says(key):
        return ()
    ids = told.numbers(key)
    if min(ids) < 1:
        raise ModelError(f"{told.name}: {key!r} names layer {min(ids)}, but heads read outputs of blocks: from 1 on")
    return tuple(each - 1 for each in ids)


def told_speculator(checkpoint: HeadCheckpoint, kind: str, architectures: Sequence[str], drafts: int) -> dict[str, Any]:
    """Write the keys that all configurations of the format share.

    Raises:
        ConfigError: the head does not name its target, from which readers of the format load weights.
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
