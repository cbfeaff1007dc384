"""Every name that transformers may rename, in this one file.

Written against transformers 5.24: the model call, the attention interface, and where a model keeps what we read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from outrider.errors import ModelError

PLAN: Final = "outrider_plan"
"""The keyword under which a pass's plan travels through the model to the attention function."""


class AttentionCall(NamedTuple):
    """What one layer asks of attention beside its tensors."""

    layer: int
    scaling: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


def register_attention(name: str, function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make an attention implementation known; with no mask function beside it no dense mask is ever built."""
    AttentionInterface.register(name, function)


def read_attention_call(module: torch.nn.Module, options: dict[str, Any], width: int) -> AttentionCall:
    """Read the options of an attention call, from the call or from the layer where the family forgets to pass them."""
    scaling = options.get("scaling")
    return AttentionCall(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        scaling=width**-0.5 if scaling is None else float(scaling),
        window=options.get("sliding_window", getattr(module, "sliding_window", None)),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )


def call(
    module: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor, plan: Any
) -> torch.Tensor:
    """Run a causal model over one flat batch.

    Args:
        module: the model.
        tokens: int64 [rows].
        positions: int64 [rows].
        wanted: int64 [wanted rows], rows whose logits are computed.
        plan: handed to the attention function of every layer.

    Returns:
        Logits [wanted rows, vocabulary].
    """
    output = module(
        input_ids=tokens.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=wanted,
        **{PLAN: plan},
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def vocabulary(module: torch.nn.Module) -> int:
    """Columns of a model's logits."""
    return int(_text_config(module).vocab_size)


def decoder_layers(module: torch.nn.Module) -> torch.nn.ModuleList:
    """The decoder blocks of a model, in order."""
    layers: torch.nn.ModuleList = module.get_decoder().layers  # type: ignore[operator]
    return layers


def check_servable(module: torch.nn.Module, architecture: str) -> None:
    """Refuse a model whose state cannot be rolled back, or whose attention cannot be replaced.

    Raises:
        ModelError: naming the architecture and the reason.
    """
    if not isinstance(module, PreTrainedModel):
        return
    config = _text_config(module)
    if getattr(module.config, "is_encoder_decoder", False):
        raise ModelError(f"{architecture} is an encoder–decoder model, which Outrider cannot serve yet")
    if not getattr(module, "_supports_attention_backend", False):
        raise ModelError(f"{architecture} does not use transformers' attention interface, so it cannot be served")
    kinds = set(getattr(config, "layer_types", None) or ())
    foreign = kinds - {"full_attention", "sliding_attention"}
    if foreign:
        raise ModelError(f"{architecture} has layers of kind {', '.join(sorted(foreign))}, which cannot be rolled back")
    if getattr(module, "_is_stateful", False):
        raise ModelError(f"{architecture} keeps a recurrent state, which cannot be rolled back yet")


def _text_config(module: torch.nn.Module) -> Any:
    return module.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]


def make_config(model_type: str, values: dict[str, Any]) -> Any:
    """Build a configuration of a known model type from its values."""
    return AutoConfig.for_model(model_type, **values)


def build_empty(config: Any, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """Build a causal model without memory for its weights (everything on the meta device)."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(  # type: ignore[no-any-return]
            config, dtype=dtype, attn_implementation=attention
        )


def restore_buffers(module: torch.nn.Module) -> None:
    """Compute again the constants that a build on the meta device left without memory (rotary frequencies)."""
    for part in module.modules():
        if any(buffer.is_meta for buffer in part.buffers(recurse=False)):
            fresh = type(part)(part.config)
            for name, buffer in fresh.named_buffers(recurse=False):
                setattr(part, name, torch.nn.Buffer(buffer, persistent=False))


def tie_weights(module: torch.nn.Module) -> None:
    """Share the embedding with the output layer where the configuration says so."""
    module.tie_weights()  # type: ignore[operator]


def read_folder_config(folder: Path) -> Any:
    """Read a folder's configuration; raises whatever transformers raises for one it does not know."""
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def is_causal(config: Any) -> bool:
    """Say whether transformers has a causal language model for this configuration."""
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "is_encoder_decoder", False)


def load_folder(
    folder: Path, config: Any, dtype: torch.dtype, attention: str
) -> tuple[torch.nn.Module, list[str]]:
    """Load a causal model from a folder of safetensors; also returns the parameters the files hold nothing for."""
    module, report = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        output_loading_info=True,
    )
    return module, sorted(report["missing_keys"])


def load_folder_tokenizer(folder: Path) -> tuple[Any, int | None, int | None, str | None]:
    """Load a folder's tokenizer.

    Returns:
        The `tokenizers.Tokenizer` (None where the model has only a Python one), the ids of the beginning and
        end of sequence, and the chat template.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return backend, tokenizer.bos_token_id, tokenizer.eos_token_id, template


def context_length(config: Any) -> int | None:
    """Positions a model was made for, or None where its configuration does not say."""
    length = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return length if isinstance(length, int) else None
