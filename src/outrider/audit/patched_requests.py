"""An engine that changes each request as it arrives, so that the audit can replace a part of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from outrider.engine.engine import Engine
from outrider.requests.request import Request
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import RequestSampler

Sampler = TypeVar("Sampler", bound=RequestSampler)


class RefittedEngine(Engine):
    """An engine that changes every request before its first round.

    Args:
        change: what to do to a request.
        parts: see :class:`outrider.engine.engine.Engine`.
    """

    def __init__(self, change: Callable[[Request], None], **parts: Any) -> None:
        super().__init__(**parts)
        self._change = change

    def submit(self, prompt: Sequence[int], params: SamplingParams, **options: Any) -> Request:
        request = super().submit(prompt, params, **options)
        self._change(request)
        return request


def with_sampler(kind: type[RequestSampler]) -> Callable[..., Engine]:
    """An engine whose requests use another sampler class."""
    return partial(RefittedEngine, partial(_resample, kind))


def _resample(kind: type[RequestSampler], request: Request) -> None:
    request.sampler = as_kind(request.sampler, kind)


def as_kind(sampler: RequestSampler, kind: type[Sampler]) -> Sampler:
    """The same sampler with the methods of another class."""
    other = kind.__new__(kind)
    vars(other).update(vars(sampler))
    return other
