"""A token tree that branches at every depth, for tests of backends."""

from __future__ import annotations

from outrider.tree import TokenTree, TreeBuilder


def branching(anchor: int) -> TokenTree:
    builder = TreeBuilder(anchor)
    left, right = builder.add(0, 11), builder.add(0, 12)
    builder.add(left, 13)
    deep = builder.add(right, 14)
    builder.add(right, 15)
    builder.add(deep, 16)
    return builder.build()
