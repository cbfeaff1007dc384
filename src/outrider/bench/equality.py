"""Whether speculation changed a text and, where it did, whether two tokens were as good as equal.

On a backend whose rows depend on what shares the pass, a tie may fall either way.  The tie rule: the whole speculative
text is forced through plain decoding, and every token of it must be the best choice there up to the rounding of the
precision, or stand at the edge of the nucleus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from outrider.bench.runner import Sample, Setting
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import RequestSampler
from outrider.verify.base import Verifier

TIE: Final = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 2e-1}
"""Scores closer than this are equal up to rounding, by the precision of the weights."""
_EDGE: Final = 1e-6
"""Probability mass closer than this to top_p is at the edge of the nucleus."""


def repeats_plain_text(verifier: Verifier, setting: Setting) -> bool:
    """Whether a rule promises plain decoding's very text, and not only its distribution."""
    return setting.temperature == 0 or verifier.draws.repeats_plain_text


@dataclass(frozen=True)
class Difference:
    """One text that is not plain decoding's."""

    prompt_id: str
    repeat: int
    position: int
    """The first output token that differs, counted from 0."""
    plain_token: int | None
    token: int | None
    gap: float
    """How far the token's score lies below the best one's at that position, noise included; 0 where it is the best."""
    best_two_gap: float
    """How far apart the two best scores are there."""
    worst_gap: float
    """The largest gap of the whole text."""
    within_tie_rule: bool

    def to_json(self) -> dict[str, Any]:
        """For the result file."""
        return dict(vars(self))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two texts part; None where they are the same."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def compare(llm: LLM, plain: Sample, other: Sample, params: SamplingParams, tie: float) -> Difference | None:
    """Compare a text with plain decoding's, and judge a difference by the tie rule.

    Args:
        llm: the target, decoding plainly.
        plain: what it said.
        other: what a method said to the same prompt with the same parameters.
        params: those parameters.
        tie: see ``TIE``.
    """
    position = first_difference(plain.token_ids, other.token_ids)
    if position is None:
        return None
    prompt = other.prompt.token_ids
    rows = forced_rows(llm, prompt, other.token_ids, params)
    judge = _Judge(rows, prompt, other.token_ids, params)
    gaps = [judge.gap(place) for place in range(len(other.token_ids))]
    here = position if position < len(gaps) else None
    return Difference(
        prompt_id=other.prompt.row.id,
        repeat=other.repeat,
        position=position,
        plain_token=_at(plain.token_ids, position),
        token=_at(other.token_ids, position),
        gap=math.inf if here is None else gaps[here],
        best_two_gap=math.inf if here is None else judge.best_two_gap(here),
        worst_gap=max(gaps, default=math.inf),
        within_tie_rule=here is not None and all(gap <= tie or judge.at_edge(place) for place, gap in enumerate(gaps)),
    )


def forced_rows(llm: LLM, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams) -> torch.Tensor:
    """The target's logits before each token of a given text, by plain decoding.

    Returns:
        [tokens, vocabulary].
    """
    rows: list[torch.Tensor] = []

    def force(history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        place = len(history) - len(prompt)
        rows.append(logits.clone())
        only = torch.full_like(logits, -torch.inf)
        only[tokens[place]] = 0.0
        return only

    wish = replace(
        params, temperature=0.0, top_p=1.0, stop=(), ignore_eos=True, max_tokens=len(tokens), processors=(force,)
    )
    llm.generate(list(prompt), wish)
    return torch.stack(rows)


class _Judge:
    """Scores the tokens of a text by the target's rows, with the request's own noise."""

    def __init__(
        self, rows: torch.Tensor, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams
    ) -> None:
        self._rows, self._tokens, self._params = rows, tokens, params
        self._sampler = RequestSampler(
            params,
            seed=(params.seed or 0) % 2**64,
            choice=0,
            vocabulary=rows.shape[1],
            committed=prompt,
            prompt_length=len(prompt),
            end_ids=(),
        )

    def gap(self, place: int) -> float:
        """How far the token's score lies below the best; infinite where the token cannot be chosen at all."""
        token = self._tokens[place]
        for width in (2, self._rows.shape[1]):
            ids, confidence = self._best(place, width)
            if token in ids:
                chosen = confidence[ids.index(token)]
                return math.log(confidence[0] / chosen) if chosen > 0 else math.inf
        return math.inf

    def best_two_gap(self, place: int) -> float:
        """How far apart the two best scores are."""
        _, confidence = self._best(place, 2)
        return math.log(confidence[0] / confidence[1]) if len(confidence) > 1 and confidence[1] > 0 else math.inf

    def at_edge(self, place: int) -> bool:
        """Whether the token, or the best one, is in or out of the nucleus by a rounding error."""
        if self._params.greedy or self._params.top_p == 1.0:
            return False
        p = torch.softmax(self._rows[place].double() / self._params.temperature, 0)
        candidates = (self._tokens[place], self._best(place, 1)[0][0])
        return any(abs(float(p[p > p[token]].sum()) - self._params.top_p) <= _EDGE for token in candidates)

    def _best(self, place: int, width: int) -> tuple[list[int], list[float]]:
        row, path = self._rows[place : place + 1], self._tokens[:place]
        return self._sampler.perturbed_best(row, [path], width)[0]


def _at(tokens: Sequence[int], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None
