"""Embedding and LM head of a transformers model, without the blocks between: tokens to rows, and rows to logits.

A family may do more than multiply with the head's matrix (scale, cap, transform), so logits of given rows come from the
model's own code, run with a body that returns those rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.models.hf.transformers_api import decoder_layers


def width(module: torch.nn.Module) -> int:
    """Numbers in a hidden row."""
    return int(_text_config(module).hidden_size)


def bodies(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The parts around a model's blocks, outermost first: the head reads what the first one that is called returns."""
    blocks = decoder_layers(module)
    around = [part for part in module.modules() if any(inner is blocks for inner in part.modules())]
    return [part for part in around if part not in (module, blocks)]


def embed(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Embeddings of tokens [n] as the first block reads them, but for what positions add: [n, width]."""
    rows: torch.Tensor = module.get_input_embeddings()(tokens)
    return rows * _embedding_scale(module)


def unembed(module: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [n, vocabulary] of rows [n, width] that the body might have returned."""
    tokens = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
    with _returning(bodies(module), hidden.unsqueeze(0)):
        logits: torch.Tensor = module(input_ids=tokens, use_cache=False).logits[0]
    return logits


def head_rows(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Rows [n, width] of the matrix that logits are products with.

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
    """What a family multiplies embeddings with outside of its embedding module; most do it inside or not at all."""
    config = _text_config(module)
    if getattr(config, "mup_enabled", False):  # AFMoE
        return float(config.hidden_size**0.5)
    return float(getattr(config, "embedding_multiplier", getattr(config, "embedding_scale", 1.0)))  # Granite, HRM


class _Rows(tuple[torch.Tensor]):
    """A body's output that has rows and, whatever else is asked for, nothing."""

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _returning(parts: list[Any], rows: torch.Tensor) -> Iterator[None]:
    """Let modules return given rows instead of computing any."""
    for part in parts:
        part.forward = lambda *args, **options: _Rows((rows,))
    try:
        yield
    finally:
        for part in parts:
            del part.forward
