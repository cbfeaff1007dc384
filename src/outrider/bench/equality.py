"""Compare texts with plain decoding's, and judge differences by the tie rule."""

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
    """Whether a rule promises the text of plain decoding, not only its distribution."""
    return verifier.lossless and (setting.temperature == 0 or repeats_plain_text(verifier))


@dataclass(frozen=True)
class Difference:
    """One text that differs from plain decoding's."""

    prompt_id: str
    repeat: int
    position: int
    """The first output token that differs, counted from 0."""
    plain_token: int | None
    token: int | None
    gap: float
    """How far the token's score is below the best score at that position, noise included."""
    best_two_gap: float
    """The difference of the two best scores there."""
    worst_gap: float
    """The largest gap in the text."""
    within_tie_rule: bool

    def to_json(self) -> dict[str, Any]:
        """The difference as a JSON object."""
        return dict(vars(self))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two texts differ; None if they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def compare(
    llm: LLM, plain: Sample, other: Sample, params: SamplingParams, dtype: torch.dtype, *, exact: bool
) -> Difference | None:
    """Compare a text with plain decoding's, and judge a difference by the tie rule.

    Args:
        llm: the target, without speculation.
        plain: its text.
        other: a method's text for the same prompt and parameters.
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
