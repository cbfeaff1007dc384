"""Attention of one sequence's rows over its cache, in plain torch: the specification.

Key columns, left to right, for a sequence with ``context`` committed rows and ``n`` rows in this pass:

    0 ─────────────────────── context │ context ───────── context + n
      every row sees all of them      │ each row sees its ancestors and itself
"""

from __future__ import annotations

import torch


def tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    hidden: torch.Tensor | None,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend with rows that see a common prefix and a part of the tail.

    Args:
        query: [query heads, n, width].
        keys: [key heads, columns, width]; query heads are a multiple of key heads.
        values: [key heads, columns, value width].
        hidden: bool [n, m], True where a row must not see one of the last ``m`` columns; None hides nothing.
        scaling: multiplies the scores.
        softcap: scores become ``softcap · tanh(score / softcap)`` (Gemma 2).
        sinks: [query heads], logits of a column that takes probability and gives no value (gpt-oss).

    Returns:
        [n, query heads, value width].
    """
    heads, rows, width = query.shape
    key_heads, columns, _ = keys.shape
    group = heads // key_heads
    grouped = query.reshape(key_heads, group * rows, width)
    scores = torch.matmul(grouped * scaling, keys.transpose(1, 2)).view(key_heads, group, rows, columns).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if hidden is not None:
        scores[..., columns - hidden.shape[1] :].masked_fill_(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.float().view(key_heads, group, 1, 1).expand(-1, -1, rows, 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :columns].to(values.dtype)
    mixed = torch.matmul(weights.view(key_heads, group * rows, columns), values)
    return mixed.view(key_heads, group, rows, -1).permute(2, 0, 1, 3).reshape(rows, heads, -1)
