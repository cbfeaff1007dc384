"""How a batch and its pages are handed to the kernels' decoder."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from outrider.kv.pool import LayerStore, PagedCache
from outrider.tree import TokenTree, TreeBatch

_GROUP: Final = 32
"""Head rows in the cache are filled up to a multiple of this."""
Share = tuple[int, int, int, int, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]", bool]


def shares(batch: TreeBatch, cache: PagedCache) -> list[Share]:
    """Each sequence's part of a pass.

    Args:
        batch: rows of every sequence.
        cache: their pages, already extended.

    Returns:
        Rows, context, forced, skip, parents, slots, and whether forced rows see each other.
    """
    return [
        (
            sequence.rows,
            sequence.context,
            len(sequence.forced),
            sequence.skip,
            _parents(sequence.tree),
            cache.table(sequence.key).slots(0, sequence.context + sequence.tail).numpy(),
            sequence.together,
        )
        for sequence in batch.sequences
    ]


def half_store(cache: PagedCache, heads: int, head_width: int) -> LayerStore:
    """All layers' keys and values in a cache as one store, ``[heads, slots, stored width]`` fp16.

    Args:
        cache: the decoder's pages.
        heads: layers times key heads.
        head_width: numbers of a head.
    """
    if 0 not in cache.layers:
        like = torch.empty(heads, 0, stored_width(head_width), dtype=torch.float16)
        cache.layers[0] = LayerStore(cache.slots, like, like)
    return cache.layers[0]


def stored_width(head_width: int) -> int:
    """Numbers that a head takes in the cache."""
    return -(-head_width // _GROUP) * _GROUP


def row_bytes(heads: int, head_width: int) -> int:
    """Bytes of one position's keys and values in a store."""
    return 2 * 2 * heads * stored_width(head_width)


def _parents(tree: TokenTree | None) -> np.ndarray[Any, Any]:
    return np.array(tree.parents if tree else (), dtype=np.int32)
