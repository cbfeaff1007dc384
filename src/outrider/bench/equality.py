"""Whether speculation changed a text and, where it did, whether two tokens were as good as equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.audit.tie_rule import Judge
from outrider.bench.runner import Sample, Setting
from outrider.llm import LLM
from outrider.sampling.params import SamplingParams
from outrider.verify.base import Verifier, repeats_plain_text


def promises_plain_text(verifier: Verifier, setting: Setting) -> bool:
    """Whether a rule promises plain decoding's very text, and not only its distribution or nothing at all."""
    return verifier.lossless and (setting.temperature == 0 or repeats_plain_text(verifier))


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


def compare(
    llm: LLM, plain: Sample, other: Sample, params: SamplingParams, dtype: torch.dtype, *, exact: bool
) -> Difference | None:
    """Compare a text with plain decoding's, and judge a difference by the tie rule.

    Args:
        llm: the target, decoding plainly.
        plain: what it said.
        other: what a method said to the same prompt with the same parameters.
        params: those parameters.
        dtype: precision of the target.
        exact: whether the target promises equal bits, so that no difference is a tie.
    """
    position = first_difference(plain.token_ids, other.token_ids)
    if position is None:
        return None
    prompt, tokens = other.prompt.token_ids, other.token_ids
    judge = Judge(len(prompt), tokens, params, dtype)
    forced = SamplingParams(ignore_eos=True, max_tokens=len(tokens), processors=(judge,))
    if tokens:
        llm.generate(list(prompt), forced)
    here = judge.judgements[position] if position < len(tokens) else None
    return Difference(
        prompt_id=other.prompt.row.id,
        repeat=other.repeat,
        position=position,
        plain_token=_at(plain.token_ids, position),
        token=_at(tokens, position),
        gap=here.shortfall if here else math.inf,
        best_two_gap=here.lead if here else math.inf,
        worst_gap=max((found.shortfall for found in judge.judgements), default=math.inf),
        within_tie_rule=here is not None and not exact and all(found.tied for found in judge.judgements),
    )


def _at(tokens: Sequence[int], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None
