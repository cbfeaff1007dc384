"""Checks of a request's life: early ends, bias, processors, n > 1, and preemption.

Each request's parameters come from plain decoding's text for its prompt, so that its end falls among accepted drafts.
There are so few pages that requests are preempted.  The reference is plain decoding with enough pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch

from outrider.audit.decoys import Answers, Decoys
from outrider.audit.equality import GREEDY, SAMPLED, Comparison, PlainTexts, SamplingCase, plainly
from outrider.audit.parts import Parts
from outrider.audit.report import CheckResult, Remedy
from outrider.engine.driver import Driver
from outrider.engine.engine import Engine
from outrider.models.files.tokenizer import Tokenizer
from outrider.requests.request import Request, Status
from outrider.requests.stopping import FinishReason
from outrider.requests.turn import Progress
from outrider.sampling.params import LogitsProcessor, SamplingParams

PAGE: Final = 4
"""Rows of a page; few, so that pages run out in the middle of a text."""
CROWD: Final = 1.5
"""Pages for this many of the longest request.  More requests start, because a prompt is at most two thirds of one."""
FEWEST_TOKENS: Final = 12
"""Shorter texts would cause hardly any preemption."""
BIAS: Final = 2.0
EAGER: Final = 30.0
"""A bias that makes a token the next one wherever it is allowed."""
CHOICES: Final = 3
"""Completions of one prompt, for the situation with several."""
CUT: Final = "\ufffd"
"""Replaces an incomplete character in a text."""
LONGER: Final = Remedy(advice="raise --max-tokens or bring more prompts")


def reluctant(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor that penalises the even or the odd tokens, depending on the text's length and last token."""
    logits = logits.clone()
    logits[(len(history) + history[-1]) % 2 :: 2] -= BIAS
    return logits


def _end_token(text: Sequence[int], tokenizer: Tokenizer | None) -> dict[str, Any]:
    return {"stop_token_ids": (text[len(text) * 2 // 3],)}


def _no_end_before(text: Sequence[int], tokenizer: Tokenizer | None) -> dict[str, Any]:
    end = text[len(text) // 2]
    return {"stop_token_ids": (end,), "logit_bias": {end: EAGER}, "min_tokens": len(text) // 2}


def _stop_string(text: Sequence[int], tokenizer: Tokenizer | None) -> dict[str, Any]:
    pieces = [text[place : place + width] for place in range(len(text) // 2, len(text)) for width in (2, 1)]
    found = [tokenizer.decode(piece) for piece in pieces] if tokenizer else []
    whole = next((string for string in found if string and CUT not in string), None)
    return {"stop": (whole,)} if whole else _end_token(text, tokenizer)


def _biased(text: Sequence[int], tokenizer: Tokenizer | None) -> dict[str, Any]:
    return {"logit_bias": {text[0]: -BIAS, text[-1]: BIAS}, "stop_token_ids": (text[-2],)}


def _processed(text: Sequence[int], tokenizer: Tokenizer | None) -> dict[str, Any]:
    return {"processors": (reluctant,), "stop_token_ids": (text[-1],), "min_tokens": 2}


def _several(text: Sequence[int], tokenizer: Tokenizer | None) -> dict[str, Any]:
    return {"n": CHOICES} | _end_token(text, tokenizer)


SITUATIONS: Final = (_end_token, _no_end_before, _stop_string, _biased, _processed, _several)
"""Each gives parameters for a text, from the text of plain decoding."""
BASES: Final = (GREEDY.params, SAMPLED[-1].params)
"""Every situation runs greedily, and sampled with truncation and penalties."""


@dataclass(frozen=True)
class CompletionCase:
    """One completion."""

    prompt: tuple[int, ...]
    params: SamplingParams
    choice: int = 0

    def unended(self, end_ids: frozenset[int]) -> CompletionCase:
        """The same without an end: its text continues where this one stops."""
        ends = end_ids.union(self.params.stop_token_ids)
        ban: LogitsProcessor = _Ban(tuple(ends), len(self.prompt) + self.params.min_tokens)
        processors = (ban, *self.params.processors)
        params = replace(self.params, stop=(), stop_token_ids=(), min_tokens=0, processors=processors)
        return replace(self, params=params)


@dataclass(frozen=True)
class _Ban:
    """A processor that does what ``min_tokens`` does."""

    end_ids: tuple[int, ...]
    until: int

    def __call__(self, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if len(history) >= self.until:
            return logits
        return logits.index_fill(0, torch.tensor(self.end_ids, device=logits.device), -torch.inf)


@dataclass(frozen=True)
class Life:
    """Finished requests and their streams."""

    requests: tuple[Request, ...]
    told: Mapping[str, Sequence[Progress]]
    """By request, the progress of each round."""
    preempted: int
    """Requests that were preempted."""

    @classmethod
    def of(cls, engine: Engine, asked: Sequence[CompletionCase]) -> Life:
        """Complete all requests concurrently."""
        with Driver(engine, threaded=False) as driver:
            call = driver.submit((one.prompt, one.params) for one in asked if one.choice == 0)
            told: dict[str, list[Progress]] = {request.id: [] for request in call.requests}
            preempted: set[str] = set()
            while call.open:
                for progress in driver.step():
                    told[progress.request.id].append(progress)
                preempted |= {one.id for one in call.requests if one.status is Status.WAITING and one.output_ids}
        return cls(tuple(call.requests), told, len(preempted))

    @property
    def inside(self) -> int:
        """Requests that ended at an accepted draft."""
        last = [self.told[one.id][-1] for one in self.requests if one.stop_reason is not None]
        return sum(0 < len(progress.tokens) == progress.drafted for progress in last)

    def streams(self) -> Iterator[str]:
        """Describe each stream that differs from its text."""
        for place, request in enumerate(self.requests, start=1):
            pieces = self.told[request.id]
            if [token for piece in pieces for token in piece.tokens] != request.output_ids:
                yield f"the stream of text {place} has other tokens than the text"
            if "".join(piece.text for piece in pieces) != "".join(request.text):
                yield f"the stream of text {place} has other characters than the text"


class Situations:
    """Completions in difficult situations, with plain decoding's texts for comparison.

    Args:
        parts: the engine whose plain decoding is the reference.
        prompts: token ids.
        tokens: most tokens of a text; at least :data:`FEWEST_TOKENS` are used.
        seed: the first seed.
        exact: require equal tokens; otherwise the tie rule applies.
    """

    def __init__(self, parts: Parts, prompts: Sequence[Sequence[int]], *, tokens: int, seed: int, exact: bool) -> None:
        self._parts, self._seed, self._exact = parts, seed, exact
        self._tokens = max(FEWEST_TOKENS, tokens)
        most = min(2 * self._tokens, parts.target.context_length - self._tokens)
        self._prompts = [tuple(prompt[-most:]) for prompt in prompts]

    def with_decoys(self, parts: Parts) -> Parts:
        """The same engine with a drafter that drafts the right tokens beside wrong ones, past the end of a text too."""
        return replace(parts, config=Decoys(self._answers))

    def check(self, name: str, parts: Parts, *, must_meet: bool = False) -> CheckResult:
        """Compare an engine's texts, on few pages, with those of plain decoding.

        Args:
            name: of the check.
            parts: the engine under audit.
            must_meet: whether the check is too weak if no text ends inside accepted drafts or none is preempted.
        """
        pool = parts.pool(int(CROWD * self._longest), PAGE, False)
        life = Life.of(parts.engine_on(len(self._asked), pool, parts.tokenizer), self._asked)
        errors = [request.error for request in life.requests if request.error is not None]
        if errors:
            return CheckResult(name, False, errors[0])
        batch = self._texts(self._asked, self._plain)
        found = Comparison.of(self._parts, life.requests, batch, exact=self._exact)
        ends = [self._end_complaint(place, life.requests) for place in range(len(self._asked))]
        return found.result(
            name,
            complaints=[*filter(None, ends), *life.streams()],
            figures=f"{life.inside} ended inside accepted drafts, {life.preempted} were preempted",
            remedy=LONGER if must_meet and not (life.inside and life.preempted) else None,
        )

    def _end_complaint(self, place: int, requests: Sequence[Request]) -> str:
        """Describe a wrong end of a text; after a tie that fell the other way, any end is right."""
        one, other = requests[place], self._plain.requests[place]
        ends = self._end_ids.union(one.params.stop_token_ids)
        if ends.intersection(one.output_ids[:-1]):
            return f"text {place + 1} continues after its end token"
        parted = any(mine != plain for mine, plain in zip(one.output_ids, other.output_ids, strict=False))
        return "" if parted or _ending(one) == _ending(other) else f"text {place + 1} ends differently"

    @cached_property
    def _end_ids(self) -> frozenset[int]:
        known = self._parts.tokenizer.eos_ids if self._parts.tokenizer else frozenset()
        return frozenset(token for token in known if token < self._parts.vocabulary)

    @cached_property
    def _asked(self) -> tuple[CompletionCase, ...]:
        wishes = [
            (situation, base, self._prompts[(place * len(SITUATIONS) + number) % len(self._prompts)])
            for place, base in enumerate(BASES)
            for number, situation in enumerate(SITUATIONS)
        ]
        plain = [
            replace(base, max_tokens=self._tokens, seed=self._seed + place, logprobs=0)
            for place, (_, base, _) in enumerate(wishes)
        ]
        texts = plainly(self._parts).complete([prompt for *_, prompt in wishes], plain)
        found = [
            (prompt, replace(params, **situation(text.output_ids, self._parts.tokenizer)))
            for (situation, _, prompt), params, text in zip(wishes, plain, texts, strict=True)
        ]
        return tuple(CompletionCase(prompt, params, choice) for prompt, params in found for choice in range(params.n))

    @cached_property
    def _answers(self) -> Answers:
        unended = [one.unended(self._end_ids) for one in self._asked]
        return self._texts(unended, self._plainly(unended, None)).answers

    def _texts(self, asked: Sequence[CompletionCase], plain: Life) -> PlainTexts:
        prompts, params = (tuple(column) for column in zip(*((one.prompt, one.params) for one in asked), strict=True))
        return PlainTexts(SamplingCase("situations", SamplingParams()), prompts, params, plain.requests, self._end_ids)

    @property
    def _longest(self) -> int:
        return max(len(one.prompt) for one in self._asked) + self._tokens

    @cached_property
    def _plain(self) -> Life:
        return self._plainly(self._asked, self._parts.tokenizer)

    def _plainly(self, asked: Sequence[CompletionCase], tokenizer: Tokenizer | None) -> Life:
        parts = plainly(self._parts)
        pool = parts.pool(len(asked) * (self._longest + PAGE), PAGE, False)
        return Life.of(parts.engine_on(len(asked), pool, tokenizer), asked)


def _ending(request: Request) -> tuple[int, FinishReason | None, int | str | None, str]:
    return len(request.output_ids), request.finish_reason, request.stop_reason, "".join(request.text)
