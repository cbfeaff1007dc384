"""The engine: one round for every request, on one screen.

schedule → propose → forward → accept → trim → commit → observe.  Plain decoding is the drafter that proposes nothing
and a prompt is a run of forced rows, so there is no other loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from outrider.config import SchedulerConfig
from outrider.drafters.base import Committed, DraftContext, Drafter, DraftSequence, Outcome
from outrider.engine.admission import admit
from outrider.engine.guard import GuardedDrafter
from outrider.engine.logprobs import prompt_logprobs, token_logprobs
from outrider.engine.request import Request, TokenLogprob
from outrider.engine.scheduler import Scheduler, Work
from outrider.engine.stopping import Endings, FinishReason
from outrider.kv.pool import KVPool
from outrider.metrics import PhaseSeconds
from outrider.models.base import TargetModel, check_layers
from outrider.sampling.params import SamplingParams
from outrider.tree import SequenceRows, TokenTree, TreeBatch
from outrider.verify.base import Verdict, Verifier
from outrider.verify.rows import Asked, TargetRows, rows_of

if TYPE_CHECKING:
    from outrider.models.files.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
TARGET = "target"
"""The target's name in the pool."""


@dataclass(frozen=True)
class Progress:
    """What one round did to one request."""

    request: Request
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    """How many of the tokens were accepted drafts; they come first."""
    text: str = ""
    finished: bool = False
    """Whether the request ended with this round; it may have ended since when a later reader asks the request."""


class Engine:
    """Completes requests in rounds.

    Args:
        target: the model served.
        tokenizer: makes text and names end-of-sequence ids; None serves token ids alone.
        pool: pages for the target and for drafters that keep their own.
        drafter: proposes.
        verifier: decides.
        config: row limits.
        most_nodes: most nodes of a draft tree, anchor included.
        vocabulary: token ids at or past this are never chosen.

    Raises:
        ModelError: the drafter reads hidden rows that the target does not have.
    """

    def __init__(
        self,
        *,
        target: TargetModel,
        tokenizer: Tokenizer | None,
        pool: KVPool,
        drafter: Drafter,
        verifier: Verifier,
        config: SchedulerConfig,
        most_nodes: int,
        vocabulary: int,
    ) -> None:
        self.target, self.tokenizer, self.pool = target, tokenizer, pool
        self.verifier, self.vocabulary = verifier, vocabulary
        self.seconds = PhaseSeconds()
        self._own_threads = target.own_threads
        check_layers(drafter.needs.hidden_layers, target.layers)
        self._drafter = GuardedDrafter(drafter, vocabulary)
        self._cache = pool.cache(TARGET, row_invariant=target.row_invariant)
        self._scheduler = Scheduler(self._cache, config, most_nodes, self._drafter)
        self._cancelled: list[Request] = []
        self._progress: list[Progress] = []
        """What happened and was not handed out yet."""
        self._submitted = 0

    def step(self) -> list[Progress]:
        """Run one round for every request that has room in it.

        Whatever a stage of the round raises, no request is left half-way: each has all of the round's tokens or none.
        Running requests begin again from their committed tokens, and the next call returns what happened before.  A
        signal that arrives in the middle of a commit is not covered.

        Returns:
            What happened to each request that got tokens or ended.
        """
        # Two pools of threads that wait by spinning take each other's cores.
        threads = torch.get_num_threads()
        if self._own_threads:
            torch.set_num_threads(1)
        try:
            self._end_cancelled()
            self._round()
        except BaseException:
            self._set_back()
            raise
        finally:
            if self._own_threads:
                torch.set_num_threads(threads)
        return self._handed_out()

    def _round(self) -> None:
        clock = [time.perf_counter()]
        work, preempted = self._scheduler.schedule()
        for request in preempted:
            self._drafter.pause(request.id)
        if not work:
            return
        deciding = [item for item in work if item.reaches_anchor]
        endings = [Endings(item.request.stopper) for item in deciding]
        views = tuple(_view(item, ending) for item, ending in zip(deciding, endings, strict=True))
        context = DraftContext(views, self.verifier.draws)

        clock.append(time.perf_counter())
        trees = self._drafter.propose(context)
        clock.append(time.perf_counter())
        batch = TreeBatch.pack(_rows(work, trees), self.target.device)
        clock.append(time.perf_counter())
        output = self.target.forward(batch, self._cache, self._drafter.hidden_layers)
        clock.append(time.perf_counter())
        self._advance_prompts(work, batch, output.logits)
        rows = rows_of(output.logits, self.vocabulary, _asked(batch, deciding, endings))
        decided = [self._decide(item, tree, answer) for item, tree, answer in zip(deciding, trees, rows, strict=True)]
        clock.append(time.perf_counter())
        self._drafter.observe(Outcome(context, trees, decided, batch, output, _committed(work, batch, decided)))
        clock.append(time.perf_counter())

        self._record(work, clock, sum(len(verdict.tokens) for verdict in decided), sum(map(len, trees)))
        self._close_ended()

    def _decide(self, item: Work, tree: TokenTree, rows: TargetRows) -> Verdict:
        """Accept, trim and commit one sequence's round."""
        request, error = item.request, None
        try:
            verdict = self.verifier.accept(tree, rows)
            if verdict.failed:
                error = rows.failures.get(verdict.last)
        except Exception as fault:  # noqa: BLE001 - a rule that breaks down ends its own request, and no other
            _log.exception("acceptance failed for request %s, which ends", request.id)
            verdict, error = Verdict.nothing(), fault
        taken, stopper = request.stopper.take(verdict.tokens, failed=verdict.failed)
        verdict = verdict.cut(tree, taken.count)
        logprobs = self._logprobs(request, verdict, rows)
        kept = [*range(item.forced + 1), *(item.forced + node for node in verdict.path)]
        self._cache.commit(request.id, request.computed, kept)
        self._scheduler.commit(item, verdict, taken, stopper, logprobs, error)
        ended = taken.finish_reason is not None
        self._progress.append(Progress(request, verdict.tokens, len(verdict.path), taken.text, ended))
        return verdict

    def _logprobs(self, request: Request, verdict: Verdict, rows: TargetRows) -> list[TokenLogprob]:
        """Of the emitted tokens, where they were asked for."""
        top = request.params.logprobs
        if top is None:
            return []
        chosen_from = rows.logits[[0, *verdict.path][: len(verdict.tokens)], : self.vocabulary]
        return token_logprobs(chosen_from, verdict.tokens, top)

    def _set_back(self) -> None:
        """After a round that was broken off: whoever runs begins again, as after a preemption."""
        for request in reversed(self._scheduler.running.copy()):
            self._scheduler.preempt(request)
            self._drafter.pause(request.id)
        self._close_ended()

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, *, choice: int = 0, seed: int | None = None
    ) -> Request:
        """Queue one completion of a prompt; see :func:`outrider.engine.admission.admit` for arguments and errors."""
        self._submitted += 1
        request = admit(
            f"r{self._submitted}",
            prompt,
            params,
            choice=choice,
            seed=seed,
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
            longest=min(self.target.context_length, self._cache.slots),
        )
        self._scheduler.add(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request before its next round; safe at any point, and for one that has ended."""
        if request.finish_reason is None:
            self._cancelled.append(request)

    def clear_prefix_cache(self) -> None:
        """Forget every model's keys and values that are kept for requests to come; safe between any two rounds."""
        self.pool.forget_prefixes()

    @property
    def idle(self) -> bool:
        """Whether no request is left, and nothing that happened is still to be handed out."""
        return self._scheduler.idle and not self._progress

    def _advance_prompts(self, work: Sequence[Work], batch: TreeBatch, logits: torch.Tensor) -> None:
        """Count prompt rows that yield no token, and note the log-probabilities they were asked for."""
        for index, item in enumerate(work):
            request, top = item.request, item.request.params.prompt_logprobs
            if top is not None and item.forced:
                rows = batch.forced_logits(logits, index)[:, : self.vocabulary]
                prompt, known = request.inputs[: request.prompt_length], len(request.prompt_logprobs)
                request.prompt_logprobs += prompt_logprobs(rows, prompt, request.computed, known, top)
            if not item.reaches_anchor:
                self._scheduler.advance(request, item.forced)

    def _close_ended(self) -> None:
        for progress in self._progress:
            if progress.finished:
                self._drafter.close(progress.request.id)

    def end_cancelled(self) -> list[Progress]:
        """End what was cancelled now, without a round; the result is as for :meth:`step`."""
        self._end_cancelled()
        return self._handed_out()

    def _end_cancelled(self) -> None:
        while self._cancelled:
            request = self._cancelled.pop()
            if request.finish_reason is None:
                self._scheduler.finish(request, FinishReason.CANCELLED)
                self._progress.append(Progress(request, finished=True))
                self._drafter.close(request.id)

    def _handed_out(self) -> list[Progress]:
        progress, self._progress = self._progress, []
        return progress

    def _record(self, work: Sequence[Work], clock: Sequence[float], tokens: int, rows: int) -> None:
        begun, scheduled, proposed, packed, forwarded, decided, observed = clock
        total, draft, verify = observed - begun, proposed - scheduled + observed - decided, forwarded - packed
        if any(item.forced for item in work):
            self.seconds.prefill += total
        else:
            other = total - draft - verify
            self.seconds.add_round(draft=draft, verify=verify, other=other, tokens=tokens, rows=rows)


def _view(item: Work, endings: Endings) -> DraftSequence:
    request = item.request
    return DraftSequence(
        key=request.id,
        tokens=request.inputs,
        prompt_length=request.prompt_length,
        nodes=item.nodes,
        depth=max(0, request.limit - request.wanted - 1),
        round_number=request.round_number,
        sampler=request.sampler,
        ended=endings.reached,
    )


def _rows(work: Sequence[Work], trees: Sequence[TokenTree]) -> list[SequenceRows]:
    remaining = iter(trees)
    rows = []
    for item in work:
        request, start = item.request, item.request.computed
        rows.append(
            SequenceRows(
                key=request.id,
                context=start,
                forced=tuple(request.inputs[start : start + item.forced]),
                tree=next(remaining) if item.reaches_anchor else None,
                all_logits=request.params.prompt_logprobs is not None,
            )
        )
    return rows


def _committed(work: Sequence[Work], batch: TreeBatch, verdicts: Sequence[Verdict]) -> list[Committed]:
    """The rows every sequence keeps; one whose round failed keeps none."""
    remaining = iter(verdicts)
    kept = []
    for item, first, rows in zip(work, batch.starts, batch.sequences, strict=True):
        verdict = next(remaining) if item.reaches_anchor else None
        if verdict is not None and not verdict.tokens:
            continue
        nodes = () if verdict is None else (0, *verdict.path)
        places = [*range(first, first + item.forced), *(first + item.forced + node for node in nodes)]
        kept.append(Committed(rows.key, item.request.inputs, rows.context, places))
    return kept


def _asked(batch: TreeBatch, deciding: Sequence[Work], endings: Sequence[Endings]) -> list[Asked]:
    """The rows of every sequence that gets a token."""
    reached = [(index, rows.tree) for index, rows in enumerate(batch.sequences) if rows.tree is not None]
    return [
        Asked(batch.first_tree_row(index), tree, item.request.sampler, item.request.round_number, ending.reached)
        for (index, tree), item, ending in zip(reached, deciding, endings, strict=True)
    ]
