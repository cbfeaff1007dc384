"""Many completions, so many side by side, each handed on as soon as it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from outrider.completion import Choice
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider.engine.request import Request
    from outrider.llm import LLM
    from outrider.sampling.params import SamplingParams

Name = TypeVar("Name")


class Job(NamedTuple):
    """One completion that is asked for."""

    tokens: list[int]
    params: SamplingParams


def complete(llm: LLM, jobs: Iterable[tuple[Name, Job]], abreast: int) -> Iterator[tuple[Name, Choice | RequestError]]:
    """Complete jobs, and begin the next whenever one ends, so that every pass of the target is full.

    Args:
        llm: the model, which nobody else uses meanwhile.
        jobs: drawn one by one, as there is room; each with the caller's own name for it.
        abreast: how many are decoded side by side.

    Yields:
        Each job's name with its completion, or with the reason why it cannot be served, in the order they end.
    """
    waiting, running = iter(jobs), dict[str, tuple[Name, "Request"]]()
    try:
        while True:
            for name, job in islice(waiting, abreast - len(running)):
                try:
                    request = llm.engine.submit(job.tokens, job.params)
                except RequestError as error:
                    yield name, error
                    continue
                running[request.id] = name, request
            if not running:
                return
            for progress in llm.engine.step():
                if progress.finished and progress.request.id in running:
                    name, request = running.pop(progress.request.id)
                    yield name, Choice.of(request)
    finally:
        for _, request in running.values():
            llm.engine.cancel(request)
        llm.engine.end_cancelled()
