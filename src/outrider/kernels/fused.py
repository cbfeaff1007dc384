"""The same attention through torch's fused kernel, for the common case without softcap and sinks.

Query heads that share a key head become rows of one head where the rows are few: keys and values are then read
once per key head, and nothing is repeated.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

FOLDED_ROWS: Final = 32
"""Up to so many rows the query heads of a key head are folded; above, the mask would be copied for each of them."""


def fused_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, *, scaling: float
) -> torch.Tensor:
    """Attend with rows that see a common prefix and a part of the tail.

    Args:
        query: [query heads, n, width].
        keys: [key heads, columns, width]; query heads are a multiple of key heads.
        values: [key heads, columns, width].
        bias: [n, columns] in the query's precision, −∞ where a row must not see a column; None hides nothing.
        scaling: multiplies the scores.

    Returns:
        [n, query heads, width].
    """
    heads, rows, width = query.shape
    key_heads, columns, _ = keys.shape
    group = heads // key_heads
    if rows > FOLDED_ROWS:
        mixed = scaled_dot_product_attention(
            query.view(key_heads, group, rows, width),
            keys.unsqueeze(1).expand(-1, group, -1, -1),
            values.unsqueeze(1).expand(-1, group, -1, -1),
            attn_mask=None if bias is None else bias.expand(1, 1, rows, columns),
            scale=scaling,
        )
    else:
        folded = query.reshape(1, key_heads, group * rows, width)
        if bias is not None:
            bias = bias.expand(group, rows, columns).reshape(1, 1, group * rows, columns)
        mixed = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=bias, scale=scaling)
        mixed = mixed.view(key_heads, group, rows, width)
    return mixed.permute(2, 0, 1, 3).reshape(rows, heads, width)
