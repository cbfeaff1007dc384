"""The engine: one round for every request, on one screen.

schedule → propose → forward → accept → trim → commit → observe.  Plain decoding is the drafter that proposes nothing
and a prompt is a run of forced rows, so there is no other loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from outrider.admission import admit
from outrider.config import SchedulerConfig
from outrider.drafters.base import Committed, DraftContext, Drafter, DraftSequence, Outcome
from outrider.errors import NumericsError, RequestError
from outrider.guard import GuardedDrafter
from outrider.kv.pool import KVPool
from outrider.logprobs import prompt_logprobs, token_logprobs
from outrider.metrics import PhaseSeconds
from outrider.request import Request
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import RequestSampler
from outrider.scheduler import Scheduler, Work
from outrider.stopping import FinishReason
from outrider.target.base import TargetModel, check_layers
from outrider.tree import SequenceRows, TokenTree, TreeBatch
from outrider.verify.base import Verdict, Verifier
from outrider.verify.rows import TargetRows, rows_of

if TYPE_CHECKING:
    from outrider.target.tokenizer import Tokenizer

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
        self._own_threads: bool = getattr(target, "own_threads", False)
        check_layers(drafter.needs.hidden_layers, target.layers)
        self._drafter = GuardedDrafter(drafter, vocabulary)
        self._cache = pool.cache(TARGET, row_invariant=target.row_invariant)
        self._scheduler = Scheduler(self._cache, config, most_nodes, self._drafter)
        self._cancelled: list[Request] = []
        self._submitted = 0

    def step(self) -> list[Progress]:
        """Run one round for every request that has room in it.

        Returns:
            What happened to each request that got tokens or ended.
        """
        if not self._own_threads:
            return self._round()
        # Two pools of threads that wait by spinning take each other's cores.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._round()
        finally:
            torch.set_num_threads(threads)

    def _round(self) -> list[Progress]:
        clock = [time.perf_counter()]
        ended = self.end_cancelled()
        work, preempted = self._scheduler.schedule()
        for request in preempted:
            self._drafter.pause(request.id)
        if not work:
            return ended
        deciding = [item for item in work if item.reaches_anchor]
        context = DraftContext(tuple(map(_view, deciding)), self.verifier.draws)

        clock.append(time.perf_counter())
        trees = self._drafter.propose(context)
        clock.append(time.perf_counter())
        batch = TreeBatch.pack(_rows(work, trees), self.target.device)
        clock.append(time.perf_counter())
        output = self.target.forward(batch, self._cache, self._drafter.hidden_layers)
        clock.append(time.perf_counter())
        self._advance_prompts(work, batch, output.logits)
        rows = rows_of(output.logits, self.vocabulary, _requests(batch, deciding))
        verdicts = [self._decide(item, tree, answer) for item, tree, answer in zip(deciding, trees, rows, strict=True)]
        clock.append(time.perf_counter())
        decided = [verdict for verdict, _ in verdicts]
        self._drafter.observe(Outcome(context, trees, decided, batch, output, _committed(work, batch, decided)))
        clock.append(time.perf_counter())

        self._record(work, clock, sum(len(verdict.tokens) for verdict, _ in verdicts), sum(map(len, trees)))
        return ended + [self._close_ended(progress) for _, progress in verdicts]

    def _decide(self, item: Work, tree: TokenTree, rows: TargetRows) -> tuple[Verdict, Progress]:
        """Accept, trim and commit one sequence's round."""
        request = item.request
        try:
            verdict = self.verifier.accept(tree, rows)
        except (NumericsError, RequestError) as error:
            self._scheduler.finish(request, FinishReason.ERROR, str(error))
            return Verdict.nothing(), Progress(request, finished=True)
        taken = request.stopper.take(verdict.tokens)
        verdict = verdict.cut(tree, taken.count)
        kept = [*range(item.forced + 1), *(item.forced + node for node in verdict.path)]
        self._cache.commit(request.id, request.computed, kept)
        if request.params.logprobs is not None:
            chosen_from = rows.logits[[0, *verdict.path][: len(verdict.tokens)], : self.vocabulary]
            request.logprobs += token_logprobs(chosen_from, verdict.tokens, request.params.logprobs)
        self._scheduler.commit(item, verdict, taken)
        ended = taken.finish_reason is not None
        return verdict, Progress(request, verdict.tokens, len(verdict.path), taken.text, ended)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, *, choice: int = 0, seed: int | None = None
    ) -> Request:
        """Queue one completion of a prompt; see :func:`outrider.admission.admit` for arguments and errors."""
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
        """Whether no request is left."""
        return self._scheduler.idle

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

    def _close_ended(self, progress: Progress) -> Progress:
        if progress.finished:
            self._drafter.close(progress.request.id)
        return progress

    def end_cancelled(self) -> list[Progress]:
        """End what was cancelled now, without a round."""
        ended = []
        while self._cancelled:
            request = self._cancelled.pop()
            if request.finish_reason is None:
                self._scheduler.finish(request, FinishReason.CANCELLED)
                ended.append(self._close_ended(Progress(request, finished=True)))
        return ended

    def _record(self, work: Sequence[Work], clock: Sequence[float], tokens: int, rows: int) -> None:
        begun, scheduled, proposed, packed, forwarded, decided, observed = clock
        total, draft, verify = observed - begun, proposed - scheduled + observed - decided, forwarded - packed
        if any(item.forced for item in work):
            self.seconds.prefill += total
        else:
            other = total - draft - verify
            self.seconds.add_round(draft=draft, verify=verify, other=other, tokens=tokens, rows=rows)


def _view(item: Work) -> DraftSequence:
    request = item.request
    return DraftSequence(
        key=request.id,
        tokens=request.inputs,
        prompt_length=request.prompt_length,
        nodes=item.nodes,
        depth=max(0, request.limit - request.wanted - 1),
        round_number=request.round_number,
        sampler=request.sampler,
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


def _requests(batch: TreeBatch, deciding: Sequence[Work]) -> list[tuple[int, TokenTree, RequestSampler, int]]:
    """First logits row, tree, sampler and round of every sequence that gets a token."""
    reached = [(index, rows.tree) for index, rows in enumerate(batch.sequences) if rows.tree is not None]
    return [
        (batch.first_tree_row(index), tree, item.request.sampler, item.request.round_number)
        for (index, tree), item in zip(reached, deciding, strict=True)
    ]
