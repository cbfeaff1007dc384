"""Faulty parts of a request: its sampler, stop conditions, random numbers, stream and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from outrider.engine.engine import Engine
from outrider.kv.pool import KVPool, PagedCache
from outrider.law import Laws
from outrider.requests.request import Request
from outrider.requests.stopping import FinishReason, Stopper
from outrider.requests.turn import Progress
from outrider.sampling.distribution import KEEP_ALL
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Path, RequestSampler

HOTTER: Final = 1.3
"""Factor on the temperature of shared distributions."""


class PathBlindChoices(RequestSampler):
    """The target's own token ignores the drafts on its row's path."""

    def choose(self, logits: torch.Tensor, paths: Sequence[Path]) -> list[int]:
        return super().choose(logits, [()] * len(paths))


class PathBlindLaws(RequestSampler):
    """Distributions of ratio rules ignore the drafts on a row's path."""

    def probabilities(self, logits: torch.Tensor, paths: Sequence[Path]) -> Laws:
        return super().probabilities(logits, [()] * len(paths))


class UntruncatedLaws(RequestSampler):
    """Distributions of ratio rules ignore top_k, top_p and min_p."""

    def probabilities(self, logits: torch.Tensor, paths: Sequence[Path]) -> Laws:
        other = copy(self)
        other._truncation = KEEP_ALL
        return RequestSampler.probabilities(other, logits, paths)


def heat(request: Request) -> None:
    """Raise the temperature of the distributions that are computed for all rows of a pass at once."""
    if request.sampler.temperature_alone is not None:
        request.sampler.temperature_alone *= HOTTER


class _OtherBehindDrafts(RequestSampler):
    """Rows after drafts use other parameters."""

    def _adjust(self, row: torch.Tensor, path: Path) -> torch.Tensor:
        other = copy(self)
        other.params = self.changed() if path else self.params
        return RequestSampler._adjust(other, row, path)

    def changed(self) -> SamplingParams:
        """Return the parameters for rows after drafts."""
        raise NotImplementedError


class NoMinimum(_OtherBehindDrafts):
    """``min_tokens`` holds for the row of the last committed token, but not after drafts."""

    def changed(self) -> SamplingParams:
        return replace(self.params, min_tokens=0)


class LateProcessors(_OtherBehindDrafts):
    """Custom processors see the committed text alone."""

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


class LateEnds(Engine):
    """An end token counts only as the last token of its round, so text continues after one among accepted drafts."""

    def submit(self, prompt: Sequence[int], params: SamplingParams, **options: Any) -> Request:
        request = super().submit(prompt, params, **options)
        stream = self.tokenizer.stream(params.skip_special_tokens) if self.tokenizer else None
        request.stopper = Stopper(params, frozenset(), request.limit - request.prompt_length, stream)
        return request

    def step(self) -> list[Progress]:
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


class SharedDice(Engine):
    """The ``n`` completions of a prompt use the same random numbers."""

    def submit(self, prompt: Sequence[int], params: SamplingParams, **options: Any) -> Request:
        return super().submit(prompt, params, **options | {"choice": 0})


class ThinStreams(Engine):
    """Streams get only the last token of each round."""

    def step(self) -> list[Progress]:
        return [replace(progress, tokens=progress.tokens[-1:]) for progress in super().step()]


class _HoardingCache(PagedCache):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seen: set[str] = set()

    def release(self, key: str, *, keep: bool = True) -> None:
        if self.holds(key):
            self._seen.add(key)
        super().release(key, keep=keep)

    def reuse(self, key: str, tokens: Sequence[int], most: int) -> int:
        rows = (len(tokens) - 2) // self.page_size * self.page_size
        return rows if key in self._seen and self.extend(key, rows) else super().reuse(key, tokens, most)


class HoardingPool(KVPool):
    """A preempted request continues as if its rows were still there."""

    cache_type = _HoardingCache
