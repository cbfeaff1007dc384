"""Attention through torch's fused kernel, for layers without softcap and sinks.

With few rows, query heads that share a key head become rows of one head: keys and values are read once per key head,
and nothing is copied.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

FOLDED_ROWS: Final = 32
"""Maximum rows for folding the query heads of a key head; with more, copying the mask costs too much."""


def spread_bias(hidden: torch.Tensor, columns: int, dtype: torch.dtype, group: int) -> torch.Tensor:
    """Make the bias that the fused kernel adds to its scores: 0 or −∞.

    ``hidden`` is bool [n, m], True where a row must not see one of the last ``m`` columns; ``group`` is the number of
    query heads per key head.

    Returns:
        [n, columns]; [group · n, columns] if the rows are folded.
    """
    rows, tail = hidden.shape
    bias = torch.zeros(rows, columns, dtype=dtype, device=hidden.device)
    bias[:, columns - tail :].masked_fill_(hidden, -torch.inf)
    return bias.repeat(group, 1) if rows <= FOLDED_ROWS else bias


def fused_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, *, scaling: float
) -> torch.Tensor:
    """Do :func:`outrider.kernels.reference.tree_attention` with a bias of :func:`spread_bias`; None hides nothing."""
    heads, rows, width = query.shape
    key_heads = keys.shape[0]
    group = heads // key_heads
    mask = None if bias is None else bias[None, None]
    if rows > FOLDED_ROWS:
        mixed = scaled_dot_product_attention(
            query.view(key_heads, group, rows, width),
            keys.unsqueeze(1).expand(-1, group, -1, -1),
            values.unsqueeze(1).expand(-1, group, -1, -1),
            attn_mask=mask,
            scale=scaling,
        )
    else:
        folded = query.reshape(1, key_heads, group * rows, width)
        mixed = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=mask, scale=scaling)
        mixed = mixed.view(key_heads, group, rows, width)
    return mixed.permute(2, 0, 1, 3).reshape(rows, heads, width)
