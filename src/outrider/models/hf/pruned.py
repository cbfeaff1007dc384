"""Pruned models: fewer layers, narrower feed-forward parts, blocks without embedding and LM head, and their folder."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from outrider.models.files.tokenizer import Tokenizer
from outrider.models.hf import transformers_api
from outrider.models.hf.blueprint import blueprint

BODY: Final = "model."
"""Prefix of all parameters' names but the LM head's."""
_PRECISION: Final = torch.bfloat16


def smaller_config(config: Any, layers: Sequence[int], inner: int) -> Any:
    """Make a model's configuration with some of its layers, in order, and a feed-forward part of width ``inner``."""
    small = copy.deepcopy(config)
    small.num_hidden_layers, small.intermediate_size = len(layers), inner
    if kinds := getattr(config, "layer_types", None):
        small.layer_types = [kinds[layer] for layer in layers]
    return small


def body(config: Any, context_length: int) -> torch.nn.Module:
    """Make blocks and final norm, to be called with embedded rows; their parameters have no memory yet.

    ``context_length`` matters for rotary frequencies that depend on it.
    """
    capped = any(call.softcap for call in blueprint(config).attention_calls())  # torch's own attention knows no cap
    module: Any = transformers_api.build_empty(copy.deepcopy(config), torch.float32, "eager" if capped else "sdpa")
    blocks: torch.nn.Module = module.get_decoder()
    blocks.set_input_embeddings(torch.nn.Identity())  # type: ignore[operator]
    transformers_api.restore_buffers(blocks)
    transformers_api.freeze_rotary(blocks, context_length)
    return blocks


def run(blocks: Any, embedded: torch.Tensor) -> torch.Tensor:
    """Compute rows after the final norm [B, T, width] of embedded texts [B, T, width], with causal attention."""
    rows: torch.Tensor = blocks(inputs_embeds=embedded, use_cache=False).last_hidden_state
    return rows


def write_folder(folder: Path, config: Any, tensors: Mapping[str, torch.Tensor], tokenizer: Tokenizer) -> None:
    """Write a model and its tokenizer as transformers does, in bfloat16; the folder is created."""
    folder.mkdir(parents=True, exist_ok=True)
    told = copy.deepcopy(config)
    told.architectures, told.dtype = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__], _PRECISION
    told.bos_token_id, told.eos_token_id = tokenizer.bos_id, sorted(tokenizer.eos_ids)
    told.save_pretrained(folder)
    rounded = {name: tensor.detach().cpu().to(_PRECISION).contiguous() for name, tensor in tensors.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder, tokenizer)


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    told: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    told |= tokenizer.special_tokens
    if tokenizer.chat_template:
        told["chat_template"] = tokenizer.chat_template
    ends = {"eos_token_id": sorted(tokenizer.eos_ids)} if tokenizer.eos_ids else {}
    for name, values in (("tokenizer_config.json", told), ("generation_config.json", ends)):
        (folder / name).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
