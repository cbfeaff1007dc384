"""Decides which requests take part in the next pass, and with how many rows; the only writer of :class:`Request`.

There is no prefill phase and no decode phase: every request has rows computed and rows wanted, and each pass lets the
first catch up with the second.  A request one row short is decoding, and may put drafts behind that row.  Beside
decoding requests, prompts get few rows, so that tokens keep coming while long prompts arrive.

A request starts with the rows that others have computed of its text.  While a running one is about to compute more of
them, it waits: so the samples of one prompt compute it once.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from outrider.config import SchedulerConfig
from outrider.engine.waiting import WaitingQueue
from outrider.kv.pool import PagedCache
from outrider.requests.request import Request, Status
from outrider.requests.stopping import FinishReason
from outrider.requests.turn import Progress, Turn


class Follower(Protocol):
    """The part of :class:`outrider.drafters.base.Drafter` that the scheduler calls."""

    def adopt(self, key: str, tokens: Sequence[int], most: int) -> int:
        """How many of ``most`` reusable target rows a request may adopt."""
        ...

    def pause(self, key: str) -> None:
        """Give back the pages of a preempted request."""
        ...


_MIXED_ROWS: Final = 1.75
"""Prompt rows for each decoding request, where that is more than ``mixed_prompt_rows``: a pass over many rows takes
longer anyway, about in proportion to them, and with these it takes two or three times as long."""


@dataclass
class SchedulerCounts:
    """What happened since the engine was made."""

    admissions: int = 0
    """Requests that were admitted for the first time."""
    preemptions: int = 0
    """Requests that gave their pages to others."""
    prompt_tokens: int = 0
    """Prompt tokens of admitted requests, which were looked up in the prefix cache."""
    cached_tokens: int = 0
    """Those that were found there."""


class Scheduler:
    """Admits, preempts and commits requests.

    Args:
        cache: the target's pages.
        config: row limits.
        most_nodes: most nodes a drafter's tree may have, anchor included.
        drafter: asked before rows are adopted, told of preemptions.
        most_forced: most nodes that a grammar may add to a tree.
    """

    def __init__(
        self, cache: PagedCache, config: SchedulerConfig, most_nodes: int, drafter: Follower, most_forced: int
    ) -> None:
        self._cache, self._config, self._drafter = cache, config, drafter
        self._most_nodes, self._most_forced = most_nodes, most_forced
        self._preempted = False
        """Whether this pass preempted a request; then it admits none."""
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        """In the order of service."""
        self.counts = SchedulerCounts()
        self._arrivals = 0
        self._reserve = int(config.watermark * (cache.slots // cache.page_size)) * cache.page_size
        """Rows that stay free behind a new prompt."""
        self.outbox: list[Progress] = []
        """Progress that was not handed out yet."""
        self.draft_rows = 0
        """Rows of the scheduled pass that drafts may take, all requests together."""
        self.ended: Counter[FinishReason] = Counter()
        """Number of requests that have ended, by reason."""

    @property
    def max_running(self) -> int:
        """Most requests that run at a time."""
        return self._config.max_running

    @property
    def idle(self) -> bool:
        """Whether no request is open and all progress was handed out."""
        return not (self.waiting or self.running or self.outbox)

    def hand_out(self) -> list[Progress]:
        """Progress since the last call."""
        outbox, self.outbox = self.outbox, []
        return outbox

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._arrivals += 1
        request.arrival = self._arrivals
        self.waiting.add(request)
        if request.salt is not None:
            self._cache.salts[request.id] = request.salt

    def schedule(self) -> list[Turn]:
        """Choose the turns of the next pass: decoding requests first, then prompts, then waiting requests.

        Every turn has its pages, those for drafts left out; see :meth:`reserve`.
        """
        turns: list[Turn] = []
        rows = self._config.max_rows
        for request in [request for request in self.running if request.pending == 1]:
            if rows and self._join(turns, request, self._decoding_turn(request)):
                rows -= 1
        self.draft_rows = min(self._spare_rows(), sum(turn.most_nodes - 1 for turn in turns))
        rows -= self.draft_rows
        if decoding := sum(turn.decodes for turn in turns):  # the others are the last tokens of prompts
            rows = min(rows, max(0, self._mixed_rows(decoding) - (len(turns) - decoding)))
        rows = self._add_prompts(turns, rows, shared=decoding > 0)
        if not self._preempted:
            self._admit(turns, rows)
        self._preempted = False
        for turn in turns:
            turn.request.round_number += turn.reaches_anchor
        return turns

    def _add_prompts(self, turns: list[Turn], rows: int, *, shared: bool) -> int:
        """Give rows to the prompts that run, and return what is left.

        Where rows are ``shared``, because there are few beside decoding requests, each later prompt keeps an equal
        share, and so does the first that waits: a long prompt would take them all for hundreds of passes.
        """
        prompts = [request for request in self.running if request.pending > 1]
        others = len(prompts) + self._may_admit
        share = rows // others if shared and others else 0
        for request in prompts:
            others -= 1
            if rows and request.status is Status.RUNNING:
                turn = self._prompt_turn(request, max(1, rows - share * others))
                rows -= self._join(turns, request, turn) and turn.least_rows
        return rows

    def _admit(self, turns: list[Turn], rows: int) -> None:
        """Admit waiting requests in order, while the pass has rows and the cache has pages for them."""
        if not (self.waiting and rows):
            return
        tenants = Counter(request.tenant for request in self.running)
        for request in self.waiting.in_order(tenants):
            if not rows or len(self.running) >= self._config.max_running:
                break
            if self._cache.free_rows <= request.refused_at:
                break
            if self._awaits_rows(request):
                continue
            if not self._let_in(request):
                self._reclaim(turns)
                if self._cache.free_rows <= request.refused_at or not self._let_in(request):
                    break
            tenants[request.tenant] += 1
            turn = self._prompt_turn(request, rows)
            self._cache.extend(request.id, request.computed + turn.least_rows)
            turns.append(turn)
            rows -= turn.least_rows

    def reserve(self, turns: Sequence[Turn]) -> None:
        """Reserve pages for the turns' budgets.  Too large a budget is cut; no request is preempted for drafts."""
        for turn in turns:
            if turn.budget.nodes > 1:
                request = turn.request
                room = min(turn.most_nodes, self._cache.most_rows(request.id) - request.computed)
                if room < turn.budget.nodes:
                    turn.budget = turn.budget._replace(nodes=room)
                self._cache.extend(request.id, request.computed + turn.budget.nodes)

    def _let_in(self, request: Request) -> bool:
        """Admit a request with the rows it can reuse; False while there are no pages for the rest."""
        free = self._cache.free_rows
        known = self._cache.known_rows(request.inputs, request.reusable, request.salt)
        known = self._drafter.adopt(request.id, request.inputs, known)
        found = self._cache.reuse(request.id, request.inputs, known)
        if self._cache.shortage(request.id, request.wanted + (self._reserve if self.running else 0)):
            self._cache.release(request.id)
            self._drafter.pause(request.id)
            request.refused_at = free
            return False
        self.waiting.remove(request)
        request.computed, request.status, request.refused_at = found, Status.RUNNING, -1
        request.preempted = False
        if request.cached_tokens is None:
            request.cached_tokens, request.times.admitted = found, time.perf_counter()
            self.counts.admissions += 1
            self.counts.prompt_tokens += request.prompt_length
            self.counts.cached_tokens += found
        insort(self.running, request, key=_service_order)
        return True

    def _awaits_rows(self, request: Request) -> bool:
        """Whether a running request is about to compute rows that this one can then reuse."""
        if request.awaited is None and self._cache.shares:
            request.awaited = self._leader(request)
        if request.awaited is not None:
            leader, rows = request.awaited
            if leader.status is Status.RUNNING and leader.computed < rows:
                return True
            request.awaited = None
        return False

    def _leader(self, request: Request) -> tuple[Request, int] | None:
        """The running prompt with the longest common prefix, and the rows of that prefix; None if none helps."""
        most, page_size = request.reusable, self._cache.page_size
        found = [
            (leader, common_rows(leader.inputs, request.inputs, most, page_size))
            for leader in self.running
            if leader.pending > 1 and leader.salt == request.salt
        ]
        best = max(found, key=lambda pair: pair[1], default=None)
        return best if best and best[1] > self._cache.known_rows(request.inputs, most, request.salt) else None

    @property
    def _may_admit(self) -> bool:
        """Whether a request waits and another one may run."""
        return len(self.waiting) > 0 and len(self.running) < self._config.max_running

    def _spare_rows(self) -> int:
        """Rows of a pass that drafts may take; never one that another request needs to continue.

        One row for every running request and a prompt's chunk for those that wait come first.
        """
        prompts = self._may_admit or any(request.pending > 1 for request in self.running)
        chunk = min(self._config.prefill_chunk, self._mixed_rows(len(self.running)))
        reserved = min(chunk, self._config.max_rows // 2) if prompts else 0
        return max(0, self._config.max_rows - len(self.running) - reserved)

    def _mixed_rows(self, decoding: int) -> int:
        """Prompt rows beside decoding requests, so that a pass takes not much longer than without them."""
        least = self._config.mixed_prompt_rows
        return max(least, int(_MIXED_ROWS * decoding))

    def _decoding_turn(self, request: Request) -> Turn:
        # Where one token is left, the anchor's row gives it.
        if request.most_nodes == 1 or request.limit - request.wanted <= 1:
            return Turn(request, 0, 1)
        forced = 0 if request.sampler.grammar is None else self._most_forced
        return Turn(request, 0, min(self._most_nodes, request.most_nodes) + forced, forced)

    def _prompt_turn(self, request: Request, rows: int) -> Turn:
        pending = request.pending
        chunk = min(pending, self._config.prefill_chunk, rows)
        return Turn(request, chunk - (chunk == pending), int(chunk == pending))

    def _join(self, turns: list[Turn], request: Request, turn: Turn) -> bool:
        """Add a turn with its pages; False if it must wait itself.

        If pages are missing, the requests of the lowest priority are preempted, of equal ones the newest.
        """
        if request.status is not Status.RUNNING:
            return False
        rows = request.computed + turn.least_rows
        if not self._cache.extend(request.id, rows):
            self._reclaim(turns)
        while not self._cache.extend(request.id, rows):
            scheduled = {item.request.id for item in turns}
            victim = next((r for r in reversed(self.running) if r.id not in scheduled), None)
            if victim is None:
                return False
            self.preempt(victim)
            self.counts.preemptions += 1
            self._preempted = True
            if victim is request:
                return False
        turns.append(turn)
        return True

    def _reclaim(self, turns: Sequence[Turn]) -> None:
        """Take back pages that were reserved for drafts of earlier rounds and hold no committed row."""
        needed = {turn.request.id: turn.least_rows for turn in turns}
        for request in self.running:
            self._cache.trim(request.id, request.computed + needed.get(request.id, 0))

    def preempt(self, request: Request) -> None:
        """Preempt a request: it gives its pages back, keeps its tokens, and is computed again later."""
        self.running.remove(request)
        self._cache.release(request.id)
        request.computed, request.status, request.preempted = 0, Status.WAITING, True
        self.waiting.add(request)
        self._drafter.pause(request.id)

    def commit(self, turn: Turn) -> None:
        """Write a turn into its request, wholly or not at all: whatever can fail comes first."""
        request, verdict, taken = turn.request, turn.verdict, turn.taken
        if verdict is not None:
            request.sampler.commit(verdict.tokens)
        request.computed += len(turn.kept)
        request.prompt_logprobs += turn.prompt_logprobs
        if verdict is None or taken is None or turn.stopper is None:
            return
        request.stopper = turn.stopper
        request.logprobs += turn.logprobs
        if turn.decodes:
            request.stats.add(verdict)
            if turn.method is not None:
                request.methods[turn.method] = request.methods.get(turn.method, 0) + 1
        if not request.times.first_token:
            request.times.first_token = time.perf_counter()
        request.inputs += verdict.tokens
        if taken.text:
            request.text.append(taken.text)
        ended = taken.finish_reason is not None
        if taken.finish_reason is not None:
            request.stop_reason = taken.stop_reason
            failed = taken.finish_reason is FinishReason.ERROR
            self._end(request, taken.finish_reason, turn.error if failed else None)
        self.outbox.append(Progress(request, verdict.tokens, len(verdict.path), taken.text, ended))

    def settle(self, request: Request) -> None:
        """After a commit: share the full pages of a running request, or give back those of one that has ended."""
        # Rows of a request whose logits were no numbers may hold none either, and are not handed on.
        sound = request.finish_reason is not FinishReason.ERROR
        if sound and self._cache.holds(request.id):
            self._cache.share(request.id, request.inputs, request.computed)
        if request.status is Status.FINISHED:
            self._cache.release(request.id, keep=sound)

    def forget(self, request: Request) -> None:
        """Drop what is kept for a request beside its pages, once its drafters have let go of it."""
        self._cache.salts.pop(request.id, None)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request and give back its pages; safe at any point between rounds."""
        if request.status is not Status.FINISHED:
            self._end(request, reason, None)
            self.outbox.append(Progress(request, finished=True))
            self.settle(request)

    def _end(self, request: Request, reason: FinishReason, failure: Exception | None) -> None:
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.times.ended = time.perf_counter()  # before the reason, by which other threads see the end
        request.status, request.failure, request.finish_reason = Status.FINISHED, failure, reason
        self.ended[reason] += 1


def _service_order(request: Request) -> tuple[int, int]:
    return request.service_order


def common_rows(one: Sequence[int], other: Sequence[int], most: int, page_size: int) -> int:
    """Rows of the common prefix of two texts, in whole pages, ``most`` at most."""
    rows, most = 0, min(most, len(one))
    while rows + page_size <= most and one[rows : rows + page_size] == other[rows : rows + page_size]:
        rows += page_size
    return rows
