"""The engine: one round for every request, on one screen.

Plain decoding is the drafter that proposes nothing, and a prompt is a run of forced rows, so there is no other loop.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from outrider.config import SchedulerConfig, SpeculationDefault
from outrider.control.base import Controller, Observer
from outrider.drafters.base import Drafter
from outrider.engine.admission import admit
from outrider.engine.drafting import Drafting
from outrider.engine.grammar_drafts import MOST_FORCED, GrammarDrafts
from outrider.engine.logprobs import prompt_logprobs, token_logprobs
from outrider.engine.scheduler import Scheduler
from outrider.errors import RequestError
from outrider.grammar import GrammarEnded
from outrider.kv.pool import KVPool
from outrider.kv.state import Kept
from outrider.metrics import Clock, PhaseSeconds, RoundStats, RowKinds
from outrider.models.base import Rollback, TargetModel, TargetOutput, check_layers
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import FinishReason, Taken
from outrider.requests.turn import Progress, Turn
from outrider.sampling.params import SamplingParams
from outrider.tree import TreeBatch
from outrider.verify.base import Verdict, Verifier
from outrider.verify.rows import Asked, TargetRows, rows_of

if TYPE_CHECKING:
    from outrider.models.files.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
TARGET = "target"
"""The target's name in the pool."""


class Engine:
    """Completes requests in rounds.

    Args:
        target: the model served.
        tokenizer: makes text and names end-of-sequence ids; None serves token ids alone.
        pool: pages for the target and for drafters that keep their own.
        drafters: propose, by the name of their method; the first serves requests unless the controller says otherwise.
        verifier: decides.
        config: row limits.
        controller: says how much each request drafts.
        vocabulary: token ids at or past this are never chosen.

    Raises:
        ModelError: a drafter reads hidden rows that the target does not have.
    """

    def __init__(
        self,
        *,
        target: TargetModel,
        tokenizer: Tokenizer | None,
        pool: KVPool,
        drafters: Mapping[str, Drafter],
        verifier: Verifier,
        config: SchedulerConfig,
        controller: Controller,
        vocabulary: int,
    ) -> None:
        self.target, self.tokenizer, self.pool = target, tokenizer, pool
        self.verifier, self.controller, self.vocabulary = verifier, controller, vocabulary
        self.drafting = Drafting(drafters, verifier.draws, vocabulary, config.draft_timeout)
        check_layers(self.drafting.hidden_layers, target.layers)
        self.cache = pool.cache(TARGET, row_invariant=target.row_invariant)
        forces = verifier.deterministic and target.rollback is not Rollback.NONE
        self.grammar_drafts = GrammarDrafts(MOST_FORCED if forces else 0)
        self.scheduler = Scheduler(self.cache, config, controller.most_nodes, self.drafting, self.grammar_drafts.most)
        self.clock, self.seconds = Clock(), PhaseSeconds()
        self.own_threads = target.own_threads
        self.observers: list[Observer] = []
        """Told of every round, beside the controller."""
        self._driver: weakref.ref[object] | None = None
        self._claims = threading.Lock()
        self._cancelled: list[Request] = []
        self._submitted = 0

    def __repr__(self) -> str:
        """What it serves, and how many requests are open."""
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        return f"Engine({type(self.target).__name__}, running={running}, waiting={waiting})"

    def claim(self, driver: object) -> None:
        """Reserve the engine for one driver, as long as it has open calls.

        Raises:
            RequestError: another driver has open calls.
        """
        with self._claims:
            owner = self._driver and self._driver()
            if owner is not None and owner is not driver:
                raise RequestError("another driver runs this engine; end its calls first, or use that one")
            self._driver = weakref.ref(driver)

    def unclaim(self) -> None:
        """Let any driver have the engine."""
        self._driver = None

    def step(self) -> list[Progress]:
        """Run one round for every request that has room in it.

        Whatever a stage of the round raises, no request is left half-way: each has all of the round's tokens or none.
        Running requests begin again from their committed tokens, and the next call returns what happened before.

        Returns:
            What happened to each request that got tokens or ended.
        """
        with self._one_torch_thread():
            try:
                self._end_cancelled()
                self._round()
            except BaseException:
                self._begin_again()
                raise
        return self.scheduler.hand_out()

    def _round(self) -> None:
        clock = self.clock
        clock.restart()
        with clock("schedule"):
            turns = self.scheduler.schedule()
            self.controller.budgets(turns, self.scheduler.draft_rows)
            self.scheduler.reserve(turns)
        if not turns:
            return
        with clock("draft"):
            self.drafting.propose(turns)
            self.grammar_drafts.fit(turns)
            if self.verifier.draws.target_alone:
                self.controller.prune(turns)
        with clock("pack"):
            batch = TreeBatch.pack([turn.rows for turn in turns], self.target.device)
        with clock("verify"):
            output = self.target.forward(batch, self.cache, self.drafting.hidden_layers)
        with clock("decide"):
            self._decide(turns, batch, output)
        with clock("commit"):
            self._commit(turns)
        with clock("draft"):
            self.drafting.observe(turns, batch, output)
        stats = self._measured(turns)
        self.seconds.add(stats)
        for observer in (self.controller, *self.observers):
            observer.observe(turns, stats)
        self._close_ended()

    def _decide(self, turns: Sequence[Turn], batch: TreeBatch, output: TargetOutput) -> None:
        """Write every turn's verdict, and what the output takes of it; requests and pages stay as they are."""
        rows = iter(rows_of(output.logits, self.vocabulary, _asked(turns, batch)))
        for index, turn in enumerate(turns):
            if turn.request.prompt_top is not None and turn.forced:
                turn.prompt_logprobs = self._of_prompt(turn, batch.forced_logits(output.logits, index))
            if turn.tree is not None:
                self._accept(turn, next(rows))

    def _accept(self, turn: Turn, rows: TargetRows) -> None:
        """Judge one turn's tree; a rule that breaks down ends its own request, and no other."""
        assert turn.tree is not None
        request = turn.request
        try:
            verdict = self.verifier.accept(turn.tree, rows)
            if verdict.failed:
                turn.error = rows.failures.get(verdict.last)
            turn.taken, turn.stopper = request.stopper.take(verdict.tokens, failed=_ending(verdict, turn.error))
            turn.verdict = verdict.cut(turn.tree, turn.taken.count)
            if request.params.logprobs is not None:
                turn.logprobs = self._of_output(turn.verdict, rows, request.params.logprobs)
        except Exception as fault:  # noqa: BLE001 - see above
            _log.exception("the round failed for request %s, which ends", request.id)
            turn.verdict, turn.error, turn.logprobs = Verdict.nothing(), fault, ()
            turn.taken, turn.stopper = Taken(0, "", FinishReason.ERROR), request.stopper

    def _of_output(self, verdict: Verdict, rows: TargetRows, top: int) -> list[TokenLogprob]:
        """Log-probabilities of the emitted tokens."""
        chosen_from = rows.logits[[0, *verdict.path][: len(verdict.tokens)], : self.vocabulary]
        return token_logprobs(chosen_from, verdict.tokens, top)

    def _of_prompt(self, turn: Turn, logits: torch.Tensor) -> list[TokenLogprob]:
        """Log-probabilities of the prompt's tokens that a turn's forced rows predict."""
        request, top = turn.request, turn.request.prompt_top
        assert top is not None
        prompt, known = request.inputs[: request.prompt_length], len(request.prompt_logprobs)
        return prompt_logprobs(logits[:, : self.vocabulary], prompt, request.computed, known, top)

    def _commit(self, turns: Sequence[Turn]) -> None:
        """Keep the accepted rows of all turns at once, then take each turn into its request."""
        self.cache.commit([Kept(turn.request.id, turn.request.computed, turn.kept) for turn in turns])
        for turn in turns:
            self.scheduler.commit(turn)
            self.scheduler.settle(turn.request)

    def _measured(self, turns: Sequence[Turn]) -> RoundStats:
        prompt = decode = draft = wasted = tokens = 0
        for turn in turns:
            accepted, drafted = len(turn.kept) - turn.least_rows, len(turn.tree or ()) - turn.reaches_anchor
            draft += accepted
            wasted += drafted - accepted
            if turn.decodes:
                decode += 1
                tokens += len(turn.verdict.tokens) if turn.verdict else 0
            else:
                prompt += turn.least_rows
        kinds, verify, drafting = RowKinds(prompt, decode, draft, wasted), *map(self.clock.seconds, ("verify", "draft"))
        return RoundStats(kinds, tokens, drafting, verify, self.clock.total - drafting - verify)

    def _begin_again(self) -> None:
        """After a round that was broken off: whoever runs begins again, as after a preemption."""
        with ExitStack() as all_of_them:  # whatever one of them raises
            all_of_them.callback(self._close_ended)
            for request in self.scheduler.running.copy():
                all_of_them.callback(self.scheduler.preempt, request)

    @contextmanager
    def _one_torch_thread(self) -> Iterator[None]:
        """Leave the cores to the kernels' threads where there are any: both kinds wait by spinning."""
        threads = torch.get_num_threads()
        if not self.own_threads or threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, *, choice: int = 0, seed: int | None = None
    ) -> Request:
        """Queue one completion of a prompt; see :func:`outrider.engine.admission.admit` for arguments and errors."""
        self.drafting.check_loaded(params.algorithm)
        self._submitted += 1
        request = admit(
            f"r{self._submitted}",
            prompt,
            params,
            choice=choice,
            seed=seed,
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
            longest=min(self.target.context_length, self.cache.slots),
        )
        self.scheduler.add(request)
        return request

    def set_speculation(self, default: SpeculationDefault) -> None:
        """Say what requests do that leave their speculation open; safe between two rounds, and changes no text.

        Raises:
            ConfigError: it names a method that is not loaded.
        """
        self.drafting.check_loaded(default.algorithm)
        self.controller.default = default

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
        return self.scheduler.idle

    def _close_ended(self) -> None:
        for progress in self.scheduler.outbox:
            if progress.finished:
                self.scheduler.settle(progress.request)
                self._close(progress.request)

    def end_cancelled(self) -> list[Progress]:
        """End what was cancelled now, without a round; the result is as for :meth:`step`."""
        self._end_cancelled()
        return self.scheduler.hand_out()

    def _end_cancelled(self) -> None:
        while self._cancelled:
            request = self._cancelled.pop()
            if request.finish_reason is None:
                self.scheduler.finish(request, FinishReason.CANCELLED)
                self._close(request)

    def _close(self, request: Request) -> None:
        """Let the drafters go of a request that has ended."""
        self.drafting.close(request.id)
        self.scheduler.forget(request)


def _ending(verdict: Verdict, error: Exception | None) -> FinishReason | None:
    """How a request ends that cannot go on; None if it can."""
    if not verdict.failed:
        return None
    return FinishReason.STOP if isinstance(error, GrammarEnded) else FinishReason.ERROR


def _asked(turns: Sequence[Turn], batch: TreeBatch) -> list[Asked]:
    """The rows of every turn that gets a token."""
    return [
        Asked(
            batch.first_tree_row(index),
            turn.tree,
            turn.request.sampler,
            turn.request.round_number,
            turn.endings.reached,
        )
        for index, turn in enumerate(turns)
        if turn.tree is not None
    ]
