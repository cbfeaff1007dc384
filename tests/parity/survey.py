"""Ask of every causal family of the installed transformers: is it served, or refused in one sentence?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from families import (
    PRECISE,
    VARIANTS,
    Variant,
    build_pair,
    causal_class,
    default_config,
    model_types,
    tiny_config,
)
from flat_contract import FlatRun, Outcome, StockRun
from transformers import CONFIG_MAPPING

from outrider.errors import ModelError
from outrider.models.hf import transformers_api

TOLERANCE = 1e-4
SENSITIVE = 10 * TOLERANCE


class Finding(NamedTuple):
    """What became of one family, or of one way to configure it."""

    model_type: str
    architecture: str
    variant: str
    outcome: Outcome | None
    refusal: str | None

    @property
    def passed(self) -> bool:
        """Whether it is served rightly, by a comparison that can see errors, or refused."""
        if self.outcome is None:
            return self.refusal is not None
        return self.outcome.worst < TOLERANCE and self.outcome.control > SENSITIVE


def examine(model_type: str, variant: Variant | None = None) -> Finding:
    """Build a family tiny and run the contract, or note the sentence it is refused with."""
    architecture = causal_class(model_type).__name__
    name = variant.name if variant else ""
    try:
        outcome = _run(model_type, variant)
    except ModelError as error:
        return Finding(model_type, architecture, name, None, str(error))
    except ImportError as error:  # of another package, which from_pretrained asks for as well
        reason = str(error).strip().splitlines()[0].split(" but ")[0]
        return Finding(model_type, architecture, name, None, f"{architecture} cannot be built: {reason}")
    return Finding(model_type, architecture, name, outcome, None)


def examine_all() -> Iterator[Finding]:
    """Every model type, then every variant."""
    for model_type in model_types():
        yield examine(model_type)
    for variant in VARIANTS:
        yield examine(variant.model_type, variant)


def _run(model_type: str, variant: Variant | None) -> Outcome:
    default = default_config(CONFIG_MAPPING[model_type])
    if default is not None and variant is None:
        transformers_api.check_config(default)  # most refusals need no tiny model
    config = tiny_config(model_type, variant.values if variant else None)
    transformers_api.check_config(config)
    dtype = torch.float64 if model_type in PRECISE else torch.float32
    stock, served = build_pair(config, dtype=dtype)
    context = variant.context if variant else transformers_api.context_length(config)
    length = context if variant and variant.longest_chooses else 0
    return FlatRun(StockRun(stock, length), served, context).run()
