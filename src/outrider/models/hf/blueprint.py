"""A decoder's shapes, attention options and rotary angles, read from transformers' own model without weights.

They are not read from the configuration, because only the family's code knows how it uses each value.
"""

from __future__ import annotations

import copy
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch

from outrider.models.hf import transformers_api
from outrider.models.pass_plan import AttentionCall

_ATTENTION: Final = "outrider_blueprint"
_calls: Final[ContextVar[list[AttentionCall]]] = ContextVar("outrider_calls")


@dataclass(frozen=True)
class Blueprint:
    """A decoder without memory for its weights.

    Its methods raise whatever transformers raises for an impossible configuration.
    """

    module: Any

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, in the model's order; tied copies are left out."""
        return {name: tuple(parameter.shape) for name, parameter in self.module.named_parameters()}

    def attention_calls(self) -> tuple[AttentionCall, ...]:
        """Attention options of each layer, in order; recorded while one token runs through the model."""
        calls: list[AttentionCall] = []
        reset = _calls.set(calls)
        try:
            token = torch.zeros(1, dtype=torch.int64, device="meta")
            transformers_api.call(self.module, token, token, token)
        finally:
            _calls.reset(reset)
        return tuple(calls)

    def rotations(self, context_length: int) -> tuple[tuple[torch.Tensor, float], ...]:
        """Each layer's inverse frequencies, fp32 [rotary width / 2], and the scale of its cosines and sines.

        Frequencies that depend on the text's length are those for ``context_length``.
        """
        (unset,) = (part for part in self.module.modules() if hasattr(part, "rope_type"))
        rotary = type(unset)(unset.config)
        transformers_api.freeze_rotary(rotary, context_length)
        kinds = getattr(rotary.config, "layer_types", None) or [None] * len(
            transformers_api.decoder_layers(self.module)
        )
        prefixes = [f"{kind}_" if isinstance(rotary.rope_type, dict) else "" for kind in kinds]
        return tuple(
            (getattr(rotary, f"{prefix}inv_freq").float(), float(getattr(rotary, f"{prefix}attention_scaling")))
            for prefix in prefixes
        )


def blueprint(config: Any) -> Blueprint:
    """Build a decoder without weights; raises whatever transformers raises for a configuration it cannot build."""
    # The build writes its attention into the configuration.
    return Blueprint(transformers_api.build_empty(copy.deepcopy(config), torch.float32, _ATTENTION))


def _record(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """Attention that records its options and computes nothing."""
    _calls.get().append(call)
    return query.new_empty(1, query.shape[2], query.shape[1], values.shape[-1])


transformers_api.register_attention(_ATTENTION, _record)
