"""The prefix cache: which text is in which page, so requests that begin alike share rows.

A radix tree; an edge holds the token ids of one full page.  With four rows per page, say:

    root ── the cat sat on ── the mat . The      page 3, page 7
                         └─── a hat , and        page 3, page 9

Keys and values of a row depend only on the tokens up to it.  So the token ids from the start of the text are the whole
key; they are compared, not only hashed.  A *salt* stands for everything else that a sequence's rows depend on, or that
separates its user; the first edge holds it, so sequences of different salts share nothing.  A node is one page of one
model's cache, so the tree is never larger than the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Text = tuple[int | str, ...]
"""The token ids of one page; a salt stands before those of the first."""


class PrefixNode:
    """One page and the text in it; ``page`` is None only for the root."""

    __slots__ = ("children", "page", "parent", "text")

    def __init__(self, parent: PrefixNode | None, text: Text, page: int | None) -> None:
        self.parent, self.text, self.page = parent, text, page
        self.children: dict[Text, PrefixNode] = {}


class PrefixIndex:
    """Shared pages by their text.

    The owner of a page owns all pages above it.  So unowned pages are below owned ones, and because sequences give back
    their deepest pages first, the least recently used unowned page is always a leaf.
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
        """Number of cached pages without owners."""
        return len(self._unowned)

    def page_text(self, tokens: Sequence[int], page: int) -> Text:
        """Token ids of a text's page."""
        return tuple(tokens[page * self._page_size : (page + 1) * self._page_size])

    def edge(self, tokens: Sequence[int], page: int, salt: str | None) -> Text:
        """Edge from the previous page to a text's page."""
        text = self.page_text(tokens, page)
        return text if salt is None or page else (salt, *text)

    def match(self, tokens: Sequence[int], rows: int, salt: str | None) -> list[PrefixNode]:
        """Find the nodes of the longest known prefix of a text, in whole pages of at most ``rows`` rows."""
        node, found = self.root, []
        for page in range(rows // self._page_size):
            following = node.children.get(self.edge(tokens, page, salt))
            if following is None:
                break
            found.append(following)
            node = following
        return found

    def add(self, parent: PrefixNode, text: Text, page: int) -> PrefixNode:
        """Add a page that a sequence owns."""
        node = parent.children[text] = self._nodes[page] = PrefixNode(parent, text, page)
        return node

    def own(self, page: int) -> None:
        """Note that a page has an owner again."""
        self._unowned.pop(page, None)

    def disown(self, page: int) -> None:
        """Note that a page has lost its last owner; it is now the most recently used."""
        self._unowned[page] = None

    def evict(self) -> int:
        """Remove and return the least recently used unowned page."""
        page, _ = self._unowned.popitem(last=False)
        self._unlink(self._nodes[page])
        return page

    def forget(self, node: PrefixNode) -> list[int]:
        """Remove a node and everything below it; return the unowned pages among them."""
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
        """Pages from the root to a node."""
        pages: list[int] = []
        while node.parent is not None:
            assert node.page is not None
            pages.append(node.page)
            node = node.parent
        return pages[::-1]

    def check(self, owned: Sequence[int]) -> None:
        """Check the tree against its lists of pages, and against the pages that sequences own.

        Raises:
            AssertionError: naming the page.
        """
        seen: dict[int, PrefixNode] = {}
        below = list(self.root.children.values())
        while below:
            node = below.pop()
            assert node.page is not None
            assert node.page not in seen, f"page {node.page} is in the prefix index twice"
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
