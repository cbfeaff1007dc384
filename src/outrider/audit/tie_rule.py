"""The tie rule: which tokens plain decoding could have chosen, up to rounding.

The last bits of a row's logits may depend on how many rows share the pass.  If a backend does not promise equal bits,
a speculative text is forced through plain decoding token by token, and each token must be within rounding of the best
choice.  This file implements the sampling parameters from their definitions, independently of the engine's sampler.
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
"""Probability mass this close to top_p, or a ratio this close to min_p, counts as on the edge."""


def rounding(best_logit: float, dtype: torch.dtype) -> float:
    """How far a logit may differ between two passes that compute the same row."""
    exponent = math.floor(math.log2(max(abs(best_logit), 1e-9)))
    return max(SCORE, LAST_PLACES * torch.finfo(dtype).eps * 2.0**exponent)


@dataclass(frozen=True)
class Judgement:
    """One token against the row of plain decoding."""

    shortfall: float
    """How far its score is below the best token that was surely available; infinite if it was truncated."""
    lead: float
    """The difference of the two best scores, noise included."""
    allowed: float
    """Shortfalls up to this are ties."""
    flip: bool
    """Whether plain decoding chooses another token."""
    logprob: float
    """Of the token, before any sampling parameter."""

    @property
    def tied(self) -> bool:
        """Whether plain decoding could have chosen the token."""
        return self.shortfall <= self.allowed


class Judge:
    """A logits processor that forces a text through plain decoding and judges each token.

    Args:
        prompt_length: tokens before the text.
        text: the tokens to force.
        params: the text's sampling parameters, with its seed.
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
    """Apply everything that comes before temperature.

    Args:
        row: float32 [vocabulary], logits.
        history: prompt and output so far.
        prompt_length: tokens of the prompt.
        params: the request's parameters.
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
    """Apply the repetition, presence and frequency penalties; arguments as for :func:`adjusted`."""
    row, everything = row.clone(), list(history)
    seen = torch.tensor(sorted(set(everything)), dtype=torch.int64)
    logits = row[seen]
    row[seen] = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
    output = everything[prompt_length:]
    for token in sorted(set(output)):
        row[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    return row


def survivors(scaled: torch.Tensor, params: SamplingParams, *, score: float, mass: float) -> torch.Tensor:
    """The tokens that survive truncation when every threshold is moved a little: bool [vocabulary].

    Args:
        scaled: float32 [vocabulary], logits over temperature.
        params: top_k, top_p, min_p.
        score: lowers thresholds on scores.
        mass: raises top_p and lowers min_p.
    """
    values, order = torch.sort(scaled.double(), descending=True, stable=True)
    keep = torch.isfinite(values)
    if params.min_p > 0.0:
        keep &= values >= values[0] + math.log(params.min_p * (1.0 - mass))
    if 0 < params.top_k < len(values):
        keep &= values >= values[params.top_k - 1] - score
        if score <= 0.0:  # ties at the edge: the lowest ids stay
            keep[params.top_k :] = False
    if params.top_p < 1.0:
        p = torch.softmax(values.masked_fill(~keep, -torch.inf), 0)
        keep &= _mass_before(values, p, score) < params.top_p + mass
    keep[0] = True
    return torch.zeros(len(scaled), dtype=torch.bool).scatter_(0, order, keep)


def _mass_before(values: torch.Tensor, p: torch.Tensor, score: float) -> torch.Tensor:
    """Probability mass that ranks before each token.

    Args:
        values: float64 [tokens], descending.
        p: float64 [tokens], their probabilities.
        score: above 0, tokens within this score rank after the token; below 0, before it; at 0, as sorted.
    """
    if score == 0.0:
        return torch.cumsum(p, 0) - p
    up_to = torch.cat((torch.zeros(1, dtype=p.dtype), torch.cumsum(p, 0)))
    rank = torch.searchsorted(-values, -(values + score), right=score < 0.0)
    return up_to[rank] - (p if score < 0.0 else 0.0)
