"""Which text lies on which page, so that a request whose text begins like another's need not compute it again.

A radix tree whose edges are the token ids of one full page each; four rows to a page, say:

    root ── the cat sat on ── the mat . The      page 3, page 7
                         └─── a hat , and        page 3, page 9

The keys and values of a row are a function of the tokens up to it and of nothing else: no request has weights, masks
or positions of its own.  So the token ids from the start of the text are the whole key, and they are compared, never
trusted to a hash.  What else a sequence's rows depend on, or what sets its user apart, is its *salt*: the first edge
holds it, so sequences of different salts share nothing.  A node is one page of one model's cache, which bounds the tree
by the pages there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Text = tuple[int | str, ...]
"""The token ids of one page; a salt stands before those of the first."""


class PrefixNode:
    """One page and the text on it; ``page`` is None for the root alone."""

    __slots__ = ("children", "page", "parent", "text")

    def __init__(self, parent: PrefixNode | None, text: Text, page: int | None) -> None:
        self.parent, self.text, self.page = parent, text, page
        self.children: dict[Text, PrefixNode] = {}


class PrefixIndex:
    """The pages that may be taken over, by their text.

    Whoever owns a page owns every page above it.  So the pages nobody owns hang below the owned ones, and when a
    sequence gives its pages back deepest first, the least recently used of them is always a leaf.

    Args:
        page_size: rows per page.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.root = PrefixNode(None, (), None)
        self._nodes: dict[int, PrefixNode] = {}
        self._unowned: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, page: int) -> bool:
        return page in self._nodes

    @property
    def unowned(self) -> int:
        """Pages that are kept though no sequence owns them."""
        return len(self._unowned)

    def page_text(self, tokens: Sequence[int], page: int) -> Text:
        """The key of a text's page: its token ids."""
        return tuple(tokens[page * self._page_size : (page + 1) * self._page_size])

    def edge(self, tokens: Sequence[int], page: int, salt: str | None) -> Text:
        """What leads from the page before to a text's page."""
        text = self.page_text(tokens, page)
        return text if salt is None or page else (salt, *text)

    def match(self, tokens: Sequence[int], rows: int, salt: str | None) -> list[PrefixNode]:
        """The nodes of the longest known beginning of a text, as far as whole pages fit into so many rows."""
        node, found = self.root, []
        for page in range(rows // self._page_size):
            following = node.children.get(self.edge(tokens, page, salt))
            if following is None:
                break
            found.append(following)
            node = following
        return found

    def add(self, parent: PrefixNode, text: Text, page: int) -> PrefixNode:
        """Enter a page that a sequence owns."""
        node = parent.children[text] = self._nodes[page] = PrefixNode(parent, text, page)
        return node

    def own(self, page: int) -> None:
        """A page has an owner again."""
        self._unowned.pop(page, None)

    def disown(self, page: int) -> None:
        """The last owner has let go of a page, which becomes the most recently used."""
        self._unowned[page] = None

    def evict(self) -> int:
        """Forget the least recently used page that nobody owns, and return it."""
        page, _ = self._unowned.popitem(last=False)
        self._unlink(self._nodes[page])
        return page

    def forget(self, node: PrefixNode) -> list[int]:
        """Forget a node and all below it.

        Returns:
            The pages among them that nobody owns.
        """
        freed, below = [], [node]
        while below:
            lost = below.pop()
            assert lost.page is not None
            below += lost.children.values()
            self._unlink(lost)
            if lost.page in self._unowned:
                del self._unowned[lost.page]
                freed.append(lost.page)
        return freed

    def _unlink(self, node: PrefixNode) -> None:
        assert node.parent is not None
        assert node.page is not None
        del node.parent.children[node.text]
        del self._nodes[node.page]

    def path(self, node: PrefixNode) -> list[int]:
        """The pages from the root to a node."""
        pages: list[int] = []
        while node.parent is not None:
            assert node.page is not None
            pages.append(node.page)
            node = node.parent
        return pages[::-1]

    def check(self, owned: Sequence[int]) -> None:
        """Assert that the tree, the list of its pages and the list of those nobody owns agree.

        Args:
            owned: pages that sequences own.

        Raises:
            AssertionError: naming the page.
        """
        seen: dict[int, PrefixNode] = {}
        below = list(self.root.children.values())
        while below:
            node = below.pop()
            assert node.page is not None
            assert node.page not in seen, f"page {node.page} stands in the prefix index twice"
            ids = [part for part in node.text if not isinstance(part, str)]
            assert len(ids) == self._page_size, f"page {node.page} is indexed though it is not full"
            assert node.parent is not None
            assert node.parent.children.get(node.text) is node, f"page {node.page} hangs below the wrong page"
            seen[node.page] = node
            below += node.children.values()
        assert seen == self._nodes, f"pages lost to the prefix index: {sorted(seen.keys() ^ self._nodes.keys())}"
        free = seen.keys() - set(owned)
        assert free == self._unowned.keys(), f"owned and unowned pages mixed up: {sorted(free ^ self._unowned.keys())}"
        place = {page: turn for turn, page in enumerate(self._unowned)}
        for page in place:
            above = seen[page].parent
            turn = place.get(above.page, len(place)) if above and above.page is not None else len(place)
            assert place[page] < turn, f"page {page} would be evicted after the page above it"
