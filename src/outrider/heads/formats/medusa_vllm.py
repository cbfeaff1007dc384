"""Medusa as vLLM reads it: ``blocks.{head}.layers.{layer}``, ``lm_heads.{head}`` and, of a reduced vocabulary, its ids.

Residual layers have biases only where the configuration says ``medusa_fc_bias``; ``original_lm_head`` has all heads
share one LM part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.formats._shapes import Weights, renamed, size
from outrider.heads.formats.base import Format, Source
from outrider.heads.medusa import MedusaConfig

_LAYER: Final = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight")
_PREFIX: Final = "medusa_heads."
_SHARED: Final = "lm_head.weight"


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    return any(_LAYER.fullmatch(name.removeprefix(_PREFIX)) for name in names)


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told, name = source.told, source.name
    weights = renamed(source.files.read(source.files.names), lambda key: key.removeprefix(_PREFIX))
    found = [(int(m[1]), int(m[2])) for key in weights if (m := _LAYER.fullmatch(key))]
    heads, layers = (1 + max(pair[place] for pair in found) for place in (0, 1))
    for key, seen in (("num_heads", heads), ("num_hidden_layers", layers)):
        if (said := told.number(key, seen)) != seen:
            raise ModelError(f"{name}: {key!r} says {said}, and its weights are of {seen}")
    first = _SHARED if _SHARED in weights else "lm_heads.0.weight"
    drafted, width = size(name, weights, first)
    vocabulary = told.number("vocab_size", drafted)
    config = MedusaConfig(width=width, vocabulary=drafted, heads=heads, layers=layers)
    named = _named(weights, config, name) | {"ids": _ids(weights, vocabulary, drafted, name)}
    return HeadCheckpoint("medusa", config, TargetFacts("", width, 0, vocabulary), named, name=name)


def _named(weights: Weights, config: MedusaConfig, name: str) -> Weights:
    made: Weights = {}
    for head in range(config.heads):
        for layer in range(config.layers):
            theirs = f"blocks.{head}.layers.{layer}"
            rows, _ = size(name, weights, f"{theirs}.weight")
            made[f"blocks.{head}.{layer}.linear.weight"] = weights[f"{theirs}.weight"]
            made[f"blocks.{head}.{layer}.linear.bias"] = weights.get(f"{theirs}.bias", torch.zeros(rows))
        last = _SHARED if _SHARED in weights else f"lm_heads.{head}.weight"
        size(name, weights, last)
        made[f"lm_heads.{head}.weight"] = weights[last]
    return made


def _ids(weights: Weights, vocabulary: int, drafted: int, name: str) -> torch.Tensor:
    """Target ids of the draft vocabulary: ``token_map`` holds the ids themselves."""
    ids = weights.get("token_map")
    if ids is None:
        if drafted != vocabulary:
            raise ModelError(f"{name}: it drafts {drafted} of {vocabulary} tokens, and no 'token_map' says which")
        return torch.arange(drafted)
    if ids.is_floating_point() or ids.shape != (drafted,) or not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise ModelError(f"{name}: 'token_map' does not name {drafted} tokens of {vocabulary}")
    return ids.long()


FORMAT: Final = Format("Medusa as vLLM has it", recognises, read)
