"""Pass a batch and its pages to the kernels' decoder."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from outrider.kv.pool import PagedCache
from outrider.kv.state import LayerStore
from outrider.tree import TokenTree, TreeBatch

_GROUP: Final = 32
"""Rows of a head in the cache are padded to a multiple of this."""
_NO_TREE: Final = np.empty(0, dtype=np.int32)
_CHAIN: Final = np.arange(-1, 255, dtype=np.int32)
"""Parents of nodes in chains of usual lengths."""
Share = tuple[int, int, int, int, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]", bool]


def shares(batch: TreeBatch, cache: PagedCache) -> list[Share]:
    """Each sequence's part of a pass, in pages that are already extended.

    A part is rows, context, forced, skip, parents, slots, and whether forced rows see each other.
    """
    found: list[Share] = []
    for key, context, forced, tree, _, skip, together in batch.sequences:
        parents = _NO_TREE if tree is None else _parents(tree)
        before, tail = len(forced), len(forced) + len(parents)
        found.append((tail - skip, context, before, skip, parents, cache.table(key).slots(0, context + tail), together))
    return found


def half_store(cache: PagedCache, heads: int, head_width: int) -> LayerStore:
    """Get all layers' keys and values as one store of ``layers · key heads``, ``[heads, slots, stored width]`` fp16."""

    def empty() -> LayerStore:
        like = torch.empty(heads, 0, stored_width(head_width), dtype=torch.float16)
        return LayerStore(cache.slots, like, like)

    return cache.layer(0, empty)


def stored_width(head_width: int) -> int:
    """Numbers that a head's row takes in the cache."""
    return -(-head_width // _GROUP) * _GROUP


def row_bytes(heads: int, head_width: int) -> int:
    """Bytes of one position's keys and values in a store."""
    return 2 * 2 * heads * stored_width(head_width)


def _parents(tree: TokenTree) -> np.ndarray[Any, Any]:
    count = len(tree.parents)
    return _CHAIN[:count] if tree.is_chain and count <= _CHAIN.size else np.array(tree.parents, dtype=np.int32)
