"""Who takes part in the next pass, with how many rows; the only writer of :class:`Request`.

There is no prefill phase and no decode phase: every request has rows computed and rows wanted, and each pass lets the
first catch up with the second.  A request one row short is decoding, and may put drafts behind that row.

A request starts with the rows that others have computed of its text.  While a running one is about to compute more of
them, it waits: so the samples of one prompt compute it once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.config import SchedulerConfig
from outrider.engine.request import Request, Status, TokenLogprob
from outrider.engine.stopping import FinishReason, Stopper, Taken
from outrider.errors import OutriderError
from outrider.kv.pool import PagedCache
from outrider.verify.base import Verdict


@dataclass(frozen=True, eq=False)
class Work:
    """One request's share of a pass."""

    request: Request
    forced: int
    """Committed tokens to compute before the anchor."""
    nodes: int
    """Most tree nodes, anchor included; 0 while the pass does not reach the anchor."""

    @property
    def reaches_anchor(self) -> bool:
        """Whether this pass yields a token."""
        return self.nodes > 0


class Follower(Protocol):
    """What the scheduler asks of a drafter, see :class:`outrider.drafters.base.Drafter`."""

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """How many of the target's rows that can be taken over may be."""
        ...

    def pause(self, key: str) -> None:
        """The request has to wait."""
        ...


class Scheduler:
    """Admits, budgets, preempts and commits.

    Args:
        cache: the target's pages.
        config: row limits.
        most_nodes: most nodes a drafter's tree may have, anchor included.
        drafter: told of rows that are taken over.
    """

    def __init__(self, cache: PagedCache, config: SchedulerConfig, most_nodes: int, drafter: Follower) -> None:
        self._cache, self._config, self._most_nodes, self._drafter = cache, config, most_nodes, drafter
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._fair_nodes = most_nodes
        self._promised = 0
        """Pages that requests whose turn comes later in the pass need for their next row."""

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self.waiting and not self.running

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)
        if request.salt is not None:
            self._cache.salts[request.id] = request.salt

    def schedule(self) -> tuple[list[Work], list[Request]]:
        """The next pass.

        Returns:
            The work, decoding requests first, and the requests that lost their pages to make room.
        """
        work: list[Work] = []
        preempted: list[Request] = []
        rows = self._config.max_rows
        self._fair_nodes = self._drafting_share()
        self._promised = sum(self._needs_page(request) for request in self.running)
        for request in sorted(self.running, key=lambda request: request.pending > 1):
            if request.status is not Status.RUNNING or rows == 0:
                continue
            self._promised -= self._needs_page(request)
            share = self._share(request, rows)
            if self._make_room(request, share, work, preempted):
                work.append(share)
                self._cache.extend(request.id, request.computed + share.forced + share.nodes)
                rows -= share.forced + share.nodes
        place = 0
        while rows and place < len(self.waiting) and len(self.running) < self._config.max_running and not preempted:
            request = self.waiting[place]
            if self._cache.free_rows <= request.refused_at:
                break
            if self._awaits_rows(request):
                place += 1
                continue
            if not self._let_in(request):
                break
            del self.waiting[place]
            share = self._share(request, rows)
            self._cache.extend(request.id, request.computed + share.forced + share.nodes)
            work.append(share)
            rows -= share.forced + share.nodes
        for item in work:
            item.request.round_number += item.reaches_anchor
        return work, preempted

    def _let_in(self, request: Request) -> bool:
        """Start a request with the rows others have computed; False while there is no room for the rest of them."""
        free = self._cache.free_rows
        known = self._cache.known_rows(request.inputs, request.reusable, request.salt)
        known = self._drafter.adopt(request.id, request.inputs, known)
        found = self._cache.reuse(request.id, request.inputs, known)
        if self._cache.shortage(request.id, request.wanted):
            self._cache.release(request.id)
            self._drafter.pause(request.id)
            request.refused_at = free
            return False
        request.computed, request.status, request.refused_at = found, Status.RUNNING, -1
        if request.cached_tokens is None:
            request.cached_tokens = found
        self.running.append(request)
        return True

    def _awaits_rows(self, request: Request) -> bool:
        """Whether a running request is about to compute rows that this one can take over then."""
        if request.awaited is None:
            request.awaited = self._leader(request)
        if request.awaited is not None:
            leader, rows = request.awaited
            if leader.status is Status.RUNNING and leader.computed < rows:
                return True
            request.awaited = None
        return False

    def _leader(self, request: Request) -> tuple[Request, int] | None:
        """The running prompt that has most of a request's text before it, and how many rows that is."""
        most, page_size = request.reusable, self._cache.page_size
        found = [
            (leader, common_rows(leader.inputs, request.inputs, most, page_size))
            for leader in self.running
            if leader.pending > 1 and leader.salt == request.salt
        ]
        best = max(found, key=lambda pair: pair[1], default=None)
        return best if best and best[1] > self._cache.known_rows(request.inputs, most, request.salt) else None

    def _drafting_share(self) -> int:
        """Nodes each decoding request may use, so that drafts never take the row that lets another one go on.

        One row for every running request and a prompt's chunk for those that wait come first.
        """
        decoding = sum(request.pending == 1 for request in self.running)
        prompts = bool(self.waiting) or decoding < len(self.running)
        reserved = min(self._config.prefill_chunk, self._config.max_rows // 2) if prompts else 0
        spare = self._config.max_rows - len(self.running) - reserved
        return 1 + max(0, spare) // max(1, decoding)

    def _share(self, request: Request, rows: int) -> Work:
        pending = request.pending
        if pending > 1:
            chunk = min(pending, self._config.prefill_chunk, rows)
            return Work(request, chunk - (chunk == pending), int(chunk == pending))
        nodes = min(self._most_nodes, self._fair_nodes, rows) if request.drafting else 1
        if request.limit - request.wanted <= 1:
            nodes = 1  # one token is left, and the anchor's row gives it
        room = self._cache.most_rows(request.id, self._promised) - request.computed
        return Work(request, 0, max(1, min(nodes, room)))

    def _needs_page(self, request: Request) -> bool:
        """Whether a decoding request's next row stands on a page it does not own yet."""
        return request.pending == 1 and self._cache.owned_rows(request.id) <= request.computed

    def _make_room(self, request: Request, share: Work, work: Sequence[Work], preempted: list[Request]) -> bool:
        """Free pages for a share by preempting the youngest requests; False when the request itself must wait."""
        while self._cache.shortage(request.id, request.computed + share.forced + share.nodes):
            scheduled = {item.request.id for item in work}
            victim = next((r for r in reversed(self.running) if r.id not in scheduled), None)
            if victim is None:
                return False
            self.preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        return True

    def preempt(self, request: Request) -> None:
        """Take a request's pages; it is computed again later, and keeps its tokens, round and dice."""
        self.running.remove(request)
        self._cache.release(request.id)
        request.computed, request.status = 0, Status.WAITING
        self.waiting.appendleft(request)

    def advance(self, request: Request, rows: int) -> None:
        """Prompt rows were computed and no token came of it."""
        request.computed += rows
        self._cache.share(request.id, request.inputs, request.computed)

    def commit(
        self,
        item: Work,
        verdict: Verdict,
        taken: Taken,
        stopper: Stopper,
        logprobs: Sequence[TokenLogprob],
        error: Exception | None,
    ) -> None:
        """Take what a round emitted into its request.

        Args:
            item: the request's share of the pass.
            verdict: what was accepted, cut to what the output takes.
            taken: what the output takes.
            stopper: watches what follows.
            logprobs: of the emitted tokens, where they were asked for.
            error: why the request cannot go on after them.
        """
        request = item.request
        request.stopper = stopper
        request.logprobs += logprobs
        request.computed += item.forced + 1 + len(verdict.path)
        if item.forced == 0:
            request.stats.add(verdict)
        request.inputs += verdict.tokens
        self._cache.share(request.id, request.inputs, request.computed)
        request.sampler.commit(verdict.tokens)
        if taken.text:
            request.text.append(taken.text)
        if taken.finish_reason is not None:
            request.stop_reason = taken.stop_reason
            failed = taken.finish_reason is FinishReason.ERROR
            self.finish(request, taken.finish_reason, _sentence(error) if failed else None)

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request and give back its pages; safe at any point between rounds."""
        if request.status is Status.FINISHED:
            return
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        request.status, request.finish_reason, request.error = Status.FINISHED, reason, error
        self._cache.salts.pop(request.id, None)
        # Rows of a request whose logits were no numbers may hold none either, and are not handed on.
        self._cache.release(request.id, keep=reason is not FinishReason.ERROR)


def _sentence(error: Exception | None) -> str:
    """What a user is told; an error that nobody raised on purpose is named by its type too."""
    if isinstance(error, OutriderError):
        return str(error)
    return f"the round failed with {type(error).__name__}: {error}; the request was ended"


def common_rows(one: Sequence[int], other: Sequence[int], most: int, page_size: int) -> int:
    """Rows of the whole pages with which two texts begin alike, ``most`` at most."""
    rows, most = 0, min(most, len(one))
    while rows + page_size <= most and one[rows : rows + page_size] == other[rows : rows + page_size]:
        rows += page_size
    return rows
