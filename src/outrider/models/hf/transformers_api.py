"""Every name of transformers that may change: here, in the neighbouring files, and in ``models/files/hf_tokenizer.py``.

Written against transformers 5.24: the model call, the attention interface, and places of values in a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as hf_logging

from outrider.errors import ModelError
from outrider.models.hf.verified import TRANSFORMERS, VERIFIED
from outrider.models.pass_plan import AttentionCall, Reach

_LAYER_KINDS: Final = {"full_attention", "sliding_attention", "chunked_attention"}
_KEEPS_STATE: Final = "keeps a state beside its keys and values, which cannot be rolled back yet"
_KIND_REASONS: Final = {"indexed_attention": "chooses its keys with an indexer, which tree rows cannot use yet"}
_CLASS_REASONS: Final = {
    "DogeForCausalLM": "computes its attention mask from the values of the whole sequence",
    "Gemma4AssistantForCausalLM": "drafts for Gemma 4 from that model's keys and is no model of its own",
    "Gemma4UnifiedAssistantForCausalLM": "drafts for Gemma 4 from that model's keys and is no model of its own",
}


def register_attention(
    name: str, attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, AttentionCall], torch.Tensor]
) -> None:
    """Register an attention implementation; without a mask function, no dense mask is built.

    ``attend`` maps queries, keys and values [1, heads, rows, width] and the call's options to [1, rows, heads, width].
    """

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        call = read_attention_call(module, attention_mask, options, width=query.shape[-1])
        return attend(query, key, value, call), None

    AttentionInterface.register(name, attention)


def read_attention_call(
    module: torch.nn.Module, mask: torch.Tensor | None, options: dict[str, Any], width: int
) -> AttentionCall:
    """Read the options of an attention call, from the call or, if the family does not pass them, from the layer.

    Raises:
        ModelError: the layer adds something to its scores that no option describes.
    """
    if mask is not None:
        raise ModelError(f"{type(module).__name__} computes a mask or bias of its own, so it cannot be served")
    scaling = options.get("scaling")
    return AttentionCall(
        scaling=width**-0.5 if scaling is None else float(scaling),
        reach=_read_reach(module, options),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )


def _read_reach(module: Any, options: dict[str, Any]) -> Reach:
    if "sliding_window" in options:
        return Reach(options["sliding_window"])
    if hasattr(module, "sliding_window"):
        return Reach(module.sliding_window)
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        masks_windows = hasattr(sys.modules[type(module).__module__], "create_sliding_window_causal_mask")
        return Reach(getattr(config, "sliding_window", None) if masks_windows else None)
    kind = kinds[module.layer_idx]
    return Reach(
        config.sliding_window if kind == "sliding_attention" else None,  # type: ignore[union-attr]
        config.attention_chunk_size if kind == "chunked_attention" else None,  # type: ignore[union-attr]
    )


def call(module: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Run a causal model over one flat batch, int64 [rows]; return logits [wanted rows, vocabulary]."""
    output = module(
        input_ids=tokens.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, logits_to_keep=wanted
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def vocabulary(module: torch.nn.Module) -> int:
    """Columns of a model's logits."""
    return int(_text_config(module).vocab_size)


def row_bytes(module: torch.nn.Module) -> int:
    """Bytes of one position's keys and values, from the projections, or estimated if they are fused."""
    names = ("k_proj", "v_proj")
    parts = [getattr(part, name, None) for part in module.modules() for name in names]
    numbers = sum(part.out_features for part in parts if isinstance(part, torch.nn.Linear))
    if not numbers:
        config = _text_config(module)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        numbers = 2 * int(config.num_hidden_layers * heads * width)
    return numbers * next(module.parameters()).element_size()


def decoder_layers(module: torch.nn.Module) -> torch.nn.ModuleList:
    """The decoder blocks of a model, in order: the first list with as many entries as the model has layers."""
    count = _text_config(module).num_hidden_layers
    roots = (module.get_decoder(), module)  # type: ignore[operator]
    lists = [part for root in roots for part in root.modules() if isinstance(part, torch.nn.ModuleList)]
    return next((part for part in lists if len(part) == count), lists[0])


def freeze_rotary(module: torch.nn.Module, context_length: int) -> None:
    """Make a row's rotary angles depend only on its own position.

    ``longrope`` and ``dynamic`` choose frequencies by the longest position of a call, so a row would depend on its
    neighbours, and an early key would not fit a late query.  Here the frequencies are always those for
    ``context_length``.
    """
    for part in module.modules():
        kinds = getattr(part, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if kind in ("longrope", "dynamic"):
                _freeze_frequencies(part, kind, layer_type, context_length)


def _freeze_frequencies(part: Any, kind: str, layer_type: str | None, context_length: int) -> None:
    prefix = "" if layer_type is None else f"{layer_type}_"
    buffer = getattr(part, f"{prefix}inv_freq")
    options = {} if layer_type is None else {"layer_type": layer_type}
    if kind == "longrope" or context_length > part.config.max_position_embeddings:
        buffer.copy_(ROPE_INIT_FUNCTIONS[kind](part.config, buffer.device, seq_len=context_length, **options)[0])
    if layer_type is None:
        part.rope_type = "frozen"
    else:
        part.rope_type = part.rope_type | {layer_type: "frozen"}
    factors = part.config.rope_parameters
    if "long_mscale" in factors:  # Phi-3.5-MoE chooses this factor, too, by the longest position
        name = "long" if context_length > factors["original_max_position_embeddings"] else "short"
        factors["long_mscale"] = factors["short_mscale"] = factors[f"{name}_mscale"]


def check_config(config: Any) -> None:
    """Refuse a configuration whose model cannot be served, before any weight is read.

    Raises:
        ModelError: naming the architecture and the reason.
    """
    family = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    reason = _class_reason(family, config)
    if reason:
        raise ModelError(f"{family.__name__} {reason}, so it cannot be served")


def check_servable(module: torch.nn.Module, architecture: str) -> None:
    """Refuse a model whose state cannot be rolled back, or whose attention cannot be replaced.

    Raises:
        ModelError: naming the architecture and the reason.
    """
    if not is_stock(module):
        return
    reason = _class_reason(type(module), module.config) or _module_reason(module)
    if reason:
        raise ModelError(f"{architecture} {reason}, so it cannot be served")


def _class_reason(family: type, config: Any) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "is an encoder–decoder model"
    if family.__name__ in _CLASS_REASONS:
        return _CLASS_REASONS[family.__name__]
    if getattr(family, "_is_stateful", False):
        return _KEEPS_STATE
    kinds = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ()) - _LAYER_KINDS
    if kinds:
        return _KIND_REASONS.get(min(kinds), _KEEPS_STATE)
    if not getattr(family, "_supports_attention_backend", False):
        return "does not use transformers' attention interface"
    return None


def _module_reason(module: Any) -> str | None:
    for part in module.modules():
        if hasattr(part, "create_position_ids_from_input_ids"):
            return "counts positions from its padding token"
    for part in decoder_layers(module).modules():
        if getattr(part, "is_causal", True) is False:
            return "attends in both directions (is_decoder is off)"
    return None


def is_stock(module: torch.nn.Module) -> bool:
    """Whether a module comes from transformers; tests also serve others."""
    return isinstance(module, PreTrainedModel)


def is_verified(architecture: str) -> bool:
    """Whether a class passed the contract with the installed transformers."""
    return architecture in VERIFIED and transformers.__version__.startswith(f"{TRANSFORMERS}.")


@contextmanager
def eager_attention(module: torch.nn.Module) -> Iterator[None]:
    """Switch a model to its own eager attention while the block runs."""
    ours = module.config._attn_implementation  # type: ignore[union-attr]
    module.set_attn_implementation("eager")  # type: ignore[operator]
    try:
        yield
    finally:
        module.set_attn_implementation(ours)  # type: ignore[operator]


@contextmanager
def short_windows(module: torch.nn.Module, length: int) -> Iterator[None]:
    """Shorten a model's sliding windows and chunks while the block runs, so a few tokens exceed them."""
    config = _text_config(module)
    changed: list[tuple[Any, str, int]] = []
    for name in ("sliding_window", "attention_chunk_size"):
        full = getattr(config, name, None)
        if full is None:
            continue
        for owner in (config, *module.modules()):
            value = getattr(owner, name, None)
            if isinstance(value, int):  # a layer may count one more or one less than the configuration
                changed.append((owner, name, value))
                setattr(owner, name, value - full + length)
    try:
        yield
    finally:
        for owner, name, value in changed:
            setattr(owner, name, value)


def _text_config(module: torch.nn.Module) -> Any:
    return module.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]


def make_config(model_type: str, values: dict[str, Any]) -> Any:
    """Build a configuration of a known model type from its values."""
    return AutoConfig.for_model(model_type, **values)


def build_empty(config: Any, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """Build a causal model without memory for its weights (everything on the meta device).

    Raises:
        ModelError: it cannot be served.
    """
    check_config(config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(  # type: ignore[no-any-return]
            config, dtype=dtype, attn_implementation=attention
        )


def restore_buffers(module: torch.nn.Module) -> None:
    """Compute the constants that a build on the meta device left without memory (rotary frequencies)."""
    for part in module.modules():
        if any(buffer.is_meta for buffer in part.buffers(recurse=False)):
            fresh = type(part)(part.config)
            for name, buffer in fresh.named_buffers(recurse=False):
                setattr(part, name, torch.nn.Buffer(buffer, persistent=False))


def tie_weights(module: torch.nn.Module) -> None:
    """Share the embedding with the output layer if the configuration says so."""
    module.tie_weights()  # type: ignore[operator]


def read_folder_config(folder: Path) -> Any:
    """Read a folder's configuration; raises whatever transformers raises if it is unknown."""
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def is_causal(config: Any) -> bool:
    """Whether transformers has a causal language model for this configuration."""
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not getattr(config, "is_encoder_decoder", False)


@dataclass(frozen=True)
class LoadedFolder:
    """A causal model from a folder of safetensors."""

    module: torch.nn.Module
    missing: list[str]
    """Parameters without a tensor in the files."""
    unread: list[str]
    """Tensors of the files without a parameter."""


def load_folder(folder: Path, config: Any, dtype: torch.dtype, attention: str) -> LoadedFolder:
    """Load a causal model; raises whatever transformers raises."""
    with _quiet():
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            output_loading_info=True,
        )
    return LoadedFolder(module, sorted(report["missing_keys"]), sorted(report["unexpected_keys"]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the loader's progress bar and tables off standard error."""
    shown, verbosity = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if shown:
            hf_logging.enable_progress_bar()


def context_length(config: Any) -> int | None:
    """Positions a model was made for; None if its configuration does not say."""
    length = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return length if isinstance(length, int) else None
