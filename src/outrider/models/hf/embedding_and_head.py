"""Embedding and LM head of a transformers model, without its blocks.

A family may scale, cap or transform logits.  So the model's own code computes logits of given rows, with a body that
returns those rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.models.hf.transformers_api import decoder_layers


def width(module: torch.nn.Module) -> int:
    """Width of a hidden row."""
    return int(_text_config(module).hidden_size)


def bodies(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules around a model's blocks, outermost first; the LM head reads the output of the one that is called."""
    blocks = decoder_layers(module)
    around = [part for part in module.modules() if any(inner is blocks for inner in part.modules())]
    return [part for part in around if part not in (module, blocks)]


def embed(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Embed tokens [n] as the first block reads them, without position embeddings: [n, width]."""
    rows: torch.Tensor = module.get_input_embeddings()(tokens)
    return rows * _embedding_scale(module)


def unembed(module: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Compute logits [n, vocabulary] of the body's rows [n, width]."""
    tokens = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
    with _returning(bodies(module), hidden.unsqueeze(0)):
        logits: torch.Tensor = module(input_ids=tokens, use_cache=False).logits[0]
    return logits


def head_rows(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Rows [n, width] of the LM head's matrix.

    Raises:
        ModelError: the model has none.
    """
    head = module.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(module).__name__} has no head matrix, so none of its rows can be read")
    rows: torch.Tensor = head.weight[ids]
    return rows


def _text_config(module: Any) -> Any:
    return module.config.get_text_config(decoder=True)


def _embedding_scale(module: Any) -> float:
    """The factor of embeddings, for families that apply it outside their embedding module."""
    config = _text_config(module)
    if getattr(config, "mup_enabled", False):  # AFMoE
        return float(config.hidden_size**0.5)
    return float(getattr(config, "embedding_multiplier", getattr(config, "embedding_scale", 1.0)))  # Granite, HRM


class _Rows(tuple[torch.Tensor]):
    """A body's output with only rows; every other attribute is None."""

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _returning(parts: list[Any], rows: torch.Tensor) -> Iterator[None]:
    """Make modules return given rows while the block runs."""
    for part in parts:
        part.forward = lambda *args, **options: _Rows((rows,))
    try:
        yield
    finally:
        for part in parts:
            del part.forward
