"""The tie rule: which tokens plain decoding could have given, up to the rounding of one row.

A row's logits may depend in their last bits on how many rows share the pass.  So where a backend does not promise
equal bits, a speculative text is forced through plain decoding, token by token, and each of its tokens must be within
rounding of the best choice there.  This file works from the definitions of the sampling parameters, apart from the
engine's own sampler, and so is a second opinion on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from outrider.sampling.noise import choice_words, gumbel_range
from outrider.sampling.params import SamplingParams

SCORE: Final = 1e-4
"""Scores closer than this are equal; enough for float32."""
LAST_PLACES: Final = 4
"""Or closer than this many units in the last place of the best logit, which is more in bfloat16 and float16."""
MASS: Final = 1e-6
"""Probability mass closer than this to top_p, or a ratio closer to min_p, is at the edge."""


def rounding(best_logit: float, dtype: torch.dtype) -> float:
    """How far a logit may move between two passes that compute the same row."""
    exponent = math.floor(math.log2(max(abs(best_logit), 1e-9)))
    return max(SCORE, LAST_PLACES * torch.finfo(dtype).eps * 2.0**exponent)


@dataclass(frozen=True)
class Judgement:
    """One token against the row of plain decoding."""

    shortfall: float
    """How far its score lies below the best that was certain to be available; infinite for one that was truncated."""
    lead: float
    """How far apart the two best scores are, noise included."""
    allowed: float
    """Shortfalls up to this are ties."""
    flip: bool
    """Whether plain decoding chooses another token here."""
    logprob: float
    """Of the token, under the row before any sampling parameter."""

    @property
    def tied(self) -> bool:
        """Whether plain decoding could have given the token."""
        return self.shortfall <= self.allowed


class Judge:
    """A logits processor that forces a text through plain decoding and judges each of its tokens on the way.

    Args:
        prompt_length: tokens before the text.
        text: the tokens to force.
        params: what the text was made with, its seed included.
        dtype: precision of the target.
        end_ids: token ids that end the output, impossible before ``min_tokens``.
        choice: index among the ``n`` completions of the prompt.
    """

    def __init__(
        self,
        prompt_length: int,
        text: Sequence[int],
        params: SamplingParams,
        dtype: torch.dtype,
        *,
        end_ids: Iterable[int] = (),
        choice: int = 0,
    ) -> None:
        self._prompt_length, self._text, self._params, self._dtype = prompt_length, text, params, dtype
        self._end_ids, self._choice = tuple(end_ids), choice
        self.judgements: list[Judgement] = []

    def __call__(self, history: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        token = self._text[len(self.judgements)]
        self.judgements.append(self._judge(history, logits.detach().float().cpu(), token))
        forced = torch.full_like(logits, -torch.inf)
        forced[token] = 0.0
        return forced

    def _judge(self, history: Sequence[int], row: torch.Tensor, token: int) -> Judgement:
        params = self._params
        allowed = rounding(float(row.max()), self._dtype)
        logprob = float(torch.log_softmax(row, 0)[token])
        scaled = adjusted(row, history, self._prompt_length, params, self._end_ids)
        if params.greedy:
            sure = chosen_from = possible = torch.isfinite(scaled)
            score = scaled
        else:
            scaled, allowed = scaled / params.temperature, max(SCORE, allowed / params.temperature)
            mass = MASS * allowed / SCORE
            sure, chosen_from, possible = (
                survivors(scaled, params, score=way * allowed, mass=way * mass) for way in (-1.0, 0.0, 1.0)
            )
            words = choice_words(len(history), self._choice)
            score = scaled + gumbel_range((params.seed or 0) % 2**64, len(row), words, row.device).float()
        best = score.masked_fill(~sure, -torch.inf).max()
        shortfall = max(0.0, float(best - score[token])) if possible[token] else math.inf
        two = torch.topk(score.masked_fill(~chosen_from, -torch.inf), min(2, len(score)))
        lead = float(two.values[0] - two.values[-1])
        return Judgement(shortfall, lead, allowed, int(two.indices[0]) != token, logprob)


def adjusted(
    row: torch.Tensor, history: Sequence[int], prompt_length: int, params: SamplingParams, end_ids: Iterable[int]
) -> torch.Tensor:
    """Logits after everything that comes before temperature.

    Args:
        row: float32 [vocabulary].
        history: prompt and output so far.
        prompt_length: how many of them are the prompt.
        params: what the user asked for.
        end_ids: token ids that end the output, impossible before ``min_tokens``.
    """
    row, everything = row.clone(), list(history)
    if params.allowed_token_ids is not None:
        forbidden = torch.ones(len(row), dtype=torch.bool)
        forbidden[list(params.allowed_token_ids)] = False
        row[forbidden] = -torch.inf
    for *before, last in params.bad_word_ids:
        if everything[len(everything) - len(before) :] == before:
            row[last] = -torch.inf
    for token, bias in params.logit_bias.items():
        row[token] += bias
    if len(everything) - prompt_length < params.min_tokens:
        row[list(end_ids)] = -torch.inf
    for processor in params.processors:
        row = processor(everything, row)
    return penalised(row, everything, prompt_length, params)


def penalised(row: torch.Tensor, history: Sequence[int], prompt_length: int, params: SamplingParams) -> torch.Tensor:
    """Logits after the repetition, presence and frequency penalties of a history.

    Args:
        row: float32 [vocabulary].
        history: prompt and output so far.
        prompt_length: how many of them are the prompt.
        params: the penalties.
    """
    row, everything = row.clone(), list(history)
    seen = torch.tensor(sorted(set(everything)), dtype=torch.int64)
    logits = row[seen]
    row[seen] = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    output = everything[prompt_length:]
    for token in sorted(set(output)):
        row[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    return row


def survivors(scaled: torch.Tensor, params: SamplingParams, *, score: float, mass: float) -> torch.Tensor:
    """Which tokens may be chosen when every threshold is moved a little.

    Args:
        scaled: float32 [vocabulary], logits over temperature.
        params: top_k, top_p, min_p.
        score: thresholds on scores are lowered by this.
        mass: top_p is raised by this, min_p lowered.
    """
    values, order = torch.sort(scaled.double(), descending=True, stable=True)
    keep = torch.isfinite(values)
    if params.min_p > 0.0:
        keep &= values >= values[0] + math.log(params.min_p * (1.0 - mass))
    if 0 < params.top_k < len(values):
        keep &= values >= values[params.top_k - 1] - score
        if score <= 0.0:  # ties at the edge: the lowest ids stay, or, when in doubt, none of the others' rank
            keep[params.top_k :] = False
    if params.top_p < 1.0:
        p = torch.softmax(values.masked_fill(~keep, -torch.inf), 0)
        keep &= _mass_before(values, p, score) < params.top_p + mass
    keep[0] = True
    return torch.zeros(len(scaled), dtype=torch.bool).scatter_(0, order, keep)


def _mass_before(values: torch.Tensor, p: torch.Tensor, score: float) -> torch.Tensor:
    """Mass of the tokens that rank before each one; within ``score`` ranks may be exchanged.

    Args:
        values: float64 [tokens], falling.
        p: float64 [tokens], their probabilities.
        score: above 0 near ties rank after the token, below 0 before it, at 0 as they are sorted.
    """
    if score == 0.0:
        return torch.cumsum(p, 0) - p
    up_to = torch.cat((torch.zeros(1, dtype=p.dtype), torch.cumsum(p, 0)))
    rank = torch.searchsorted(-values, -(values + score), right=score < 0.0)
    return up_to[rank] - (p if score < 0.0 else 0.0)
