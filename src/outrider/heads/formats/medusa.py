"""Medusa as its authors publish it: https://github.com/FasterDecoding/Medusa.

``medusa_lm_head.pt`` holds ``{head}.{layer}.linear`` and ``{head}.{layers}`` for the LM part; checkpoints of Medusa-2
hold the whole model, where the heads' names begin with ``medusa_head.``.  All layers of a head share one module, so
their weights are equal, and some writers store them only once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from outrider.errors import ModelError
from outrider.heads.checkpoint import HeadCheckpoint, TargetFacts
from outrider.heads.formats._shapes import Weights, size
from outrider.heads.formats.base import Format, Source
from outrider.heads.medusa import MedusaConfig

_LINEAR: Final = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(weight|bias)")
_LAST: Final = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.weight")


def recognises(told: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a configuration and its weights' names are in this format."""
    return any(_LINEAR.fullmatch(name) for name in names)


def read(source: Source) -> HeadCheckpoint:
    """Read a head in this format."""
    told, name = source.told, source.name
    own = [key for key in source.files.names if _LINEAR.fullmatch(key) or _LAST.fullmatch(key)]
    weights = {key.removeprefix("medusa_head."): tensor for key, tensor in source.files.read(own).items()}
    linears = {(int(m[1]), int(m[2])) for key in weights if (m := _LINEAR.fullmatch(key))}
    lasts = {int(m[1]): int(m[2]) for key in weights if (m := _LAST.fullmatch(key))}
    if not lasts or set(lasts) != {head for head, _ in linears} or len(set(lasts.values())) != 1:
        raise ModelError(f"{name}: its heads do not all have a residual layer and an LM part, at the same depth")
    heads, layers = len(lasts), lasts[min(lasts)]
    vocabulary, width = size(name, weights, f"{min(lasts)}.{layers}.weight")
    if (said := told.number("medusa_num_layers", layers, low=0)) != layers:
        raise ModelError(f"{name}: 'medusa_num_layers' says {said}, and its heads have {layers} layers")
    config = MedusaConfig(width=width, vocabulary=vocabulary, heads=heads, layers=layers)
    target = TargetFacts(told.text("base_model_name_or_path"), width, 0, vocabulary)
    return HeadCheckpoint("medusa", config, target, _named(weights, config, name), name=name)


def _named(weights: Weights, config: MedusaConfig, name: str) -> Weights:
    made: Weights = {}
    for head in range(config.heads):
        for layer in range(config.layers):
            for part in ("weight", "bias"):
                once, own = f"{head}.0.linear.{part}", f"{head}.{layer}.linear.{part}"
                key = own if own in weights else once
                size(name, weights, key, 2 if part == "weight" else 1)
                made[f"blocks.{head}.{layer}.linear.{part}"] = weights[key]
        last = f"{head}.{config.layers}.weight"
        size(name, weights, last)
        made[f"lm_heads.{head}.weight"] = weights[last]
    return made | {"ids": torch.arange(config.vocabulary)}


FORMAT: Final = Format("Medusa", recognises, read)
