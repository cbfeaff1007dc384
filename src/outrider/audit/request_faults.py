"""Faults that get in where a request does: in its sampler, its stops, its dice, its stream, its pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from outrider.audit.parts import Parts
from outrider.audit.refitted import RefittedEngine, with_sampler
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.stopping import FinishReason, Stopper
from outrider.engine.turn import Progress
from outrider.kv.pool import KVPool, PagedCache
from outrider.law import Laws
from outrider.sampling.distribution import KEEP_ALL
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Path, RequestSampler

HOTTER: Final = 1.3
"""What the temperature of shared laws is multiplied by."""


class _PathBlindChoices(RequestSampler):
    def choose(self, logits: torch.Tensor, paths: Sequence[Path]) -> list[int]:
        """Judges every row by the committed text alone."""
        return super().choose(logits, [()] * len(paths))


def path_blind_choices(parts: Parts) -> Parts:
    """The target's own token leaves out the drafts on its row's path."""
    return replace(parts, engine=with_sampler(_PathBlindChoices))


class _PathBlindLaws(RequestSampler):
    def probabilities(self, logits: torch.Tensor, paths: Sequence[Path]) -> Laws:
        """Makes every row's law from the committed text alone."""
        return super().probabilities(logits, [()] * len(paths))


def path_blind_laws(parts: Parts) -> Parts:
    """The laws that ratio rules test with leave out the drafts on a row's path."""
    return replace(parts, engine=with_sampler(_PathBlindLaws))


class _UntruncatedLaws(RequestSampler):
    def probabilities(self, logits: torch.Tensor, paths: Sequence[Path]) -> Laws:
        """Keeps every token."""
        other = copy(self)
        other._truncation = KEEP_ALL
        return RequestSampler.probabilities(other, logits, paths)


def untruncated_laws(parts: Parts) -> Parts:
    """The laws that ratio rules test with know nothing of top_k, top_p and min_p."""
    return replace(parts, engine=with_sampler(_UntruncatedLaws))


def _heat(request: Request) -> None:
    if request.sampler.temperature_alone is not None:
        request.sampler.temperature_alone *= HOTTER


def hot_laws(parts: Parts) -> Parts:
    """Laws that the rows of a pass share, where temperature alone decides, have another temperature."""
    return replace(parts, engine=partial(RefittedEngine, _heat))


class _OtherBehindDrafts(RequestSampler):
    """Rows behind drafts are judged by other parameters."""

    def _adjust(self, row: torch.Tensor, path: Path) -> torch.Tensor:
        other = copy(self)
        other.params = self.changed() if path else self.params
        return RequestSampler._adjust(other, row, path)

    def changed(self) -> SamplingParams:
        """The parameters behind drafts."""
        raise NotImplementedError


class _NoMinimum(_OtherBehindDrafts):
    def changed(self) -> SamplingParams:
        return replace(self.params, min_tokens=0)


def ends_behind_drafts(parts: Parts) -> Parts:
    """``min_tokens`` is kept where the last token is committed, and forgotten behind drafts."""
    return replace(parts, engine=with_sampler(_NoMinimum))


class _LateProcessors(_OtherBehindDrafts):
    def changed(self) -> SamplingParams:
        text = tuple(self._committed)
        return replace(self.params, processors=tuple(partial(_late, text, each) for each in self.params.processors))


def _late(
    committed: Sequence[int],
    processor: Callable[[Sequence[int], torch.Tensor], torch.Tensor],
    history: Sequence[int],
    row: torch.Tensor,
) -> torch.Tensor:
    return processor(committed, row)


def path_blind_processors(parts: Parts) -> Parts:
    """Custom processors see the committed text alone."""
    return replace(parts, engine=with_sampler(_LateProcessors))


class _LateEnds(Engine):
    def submit(
        self, prompt: Sequence[int], params: SamplingParams, *, choice: int = 0, seed: int | None = None
    ) -> Request:
        """Hides the end tokens from the request's own stopper."""
        request = super().submit(prompt, params, choice=choice, seed=seed)
        stream = self.tokenizer.stream(params.skip_special_tokens) if self.tokenizer else None
        request.stopper = Stopper(params, frozenset(), request.limit - request.prompt_length, stream)
        return request

    def step(self) -> list[Progress]:
        """Looks for them at the end of each round."""
        return [self._ended(progress) for progress in super().step()]

    def _ended(self, progress: Progress) -> Progress:
        request, last = progress.request, progress.tokens[-1:]
        known = self.tokenizer.eos_ids if self.tokenizer and not request.params.ignore_eos else ()
        if progress.finished or not last or last[0] not in {*request.params.stop_token_ids, *known}:
            return progress
        self.cancel(request)
        self.end_cancelled()
        request.finish_reason, request.stop_reason = FinishReason.STOP, last[0]
        return replace(progress, finished=True)


def late_ends(parts: Parts) -> Parts:
    """An end token is seen only as the last of its round, so that text goes on behind one among accepted drafts."""
    return replace(parts, engine=_LateEnds)


class _SharedDice(Engine):
    def submit(
        self, prompt: Sequence[int], params: SamplingParams, *, choice: int = 0, seed: int | None = None
    ) -> Request:
        """Lets every completion throw the first one's dice."""
        return super().submit(prompt, params, seed=seed)


def shared_dice(parts: Parts) -> Parts:
    """The ``n`` completions of a prompt throw the same dice."""
    return replace(parts, engine=_SharedDice)


class _ThinStreams(Engine):
    def step(self) -> list[Progress]:
        """Tells of the last token of each round alone."""
        return [replace(progress, tokens=progress.tokens[-1:]) for progress in super().step()]


def thin_streams(parts: Parts) -> Parts:
    """What a stream is told of a round leaves out its accepted drafts."""
    return replace(parts, engine=_ThinStreams)


class _HoardingCache(PagedCache):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen: set[str] = set()

    def release(self, key: str, *, keep: bool = True) -> None:
        """Remembers who had pages."""
        if self.holds(key):
            self._seen.add(key)
        super().release(key, keep=keep)

    def reuse(self, key: str, tokens: Sequence[int], most: int) -> int:
        """Takes any pages for those that a request had before it was preempted."""
        rows = (len(tokens) - 2) // self.page_size * self.page_size
        return rows if key in self._seen and self.extend(key, rows) else super().reuse(key, tokens, most)


class _HoardingPool(KVPool):
    cache_type = _HoardingCache


def hoarded_rows(parts: Parts) -> Parts:
    """A request that lost its pages goes on as if their rows were still there."""
    return replace(parts, pool=_HoardingPool)
