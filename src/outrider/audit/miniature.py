"""Checks of frequencies through the real sampler, on a model of five tokens whose texts can be enumerated.

Redraws of recorded rows look distributions up.  Here the sampler computes them as for a user: penalties, bias, minimum
length, temperature and truncation, with the drafts on each row's path, for the drafter and the acceptance rule.  The
exact distribution comes from :mod:`outrider.audit.tie_rule`, which shares no code with the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import torch

from outrider.audit.chi_square import Fit
from outrider.audit.frequencies import ABREAST, fit, tally
from outrider.audit.parts import Parts
from outrider.audit.recorded import DEAD, START, RecordedModel, RecordedTexts
from outrider.audit.tie_rule import adjusted, survivors
from outrider.drafters.base import DrafterConfig
from outrider.models.base import TargetModel
from outrider.requests.request import Request
from outrider.sampling.params import SamplingParams
from outrider.verify.base import Verifier

VOCABULARY: Final = 5
LENGTH: Final = 4
"""Tokens whose joint frequencies are compared: the first comes from the prompt's pass, the others may be drafted."""
PROMPT: Final = (0, 0, 1, 0, 2, 1, 1, 2, 2, 0)
"""Every pair of three tokens, so that lookup methods find drafts; the other two tokens occur only in the output."""
END: Final = 4
LONGEST: Final = LENGTH + 1
"""The text continues, so that drafts of full depth follow the last token that counts."""
SETTINGS: Final = (
    SamplingParams(temperature=0.7, max_tokens=LONGEST),
    SamplingParams(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05, max_tokens=LONGEST),
    SamplingParams(
        temperature=0.9,
        top_p=0.95,
        repetition_penalty=1.3,
        presence_penalty=0.8,
        frequency_penalty=0.8,
        logit_bias={1: 0.5},
        stop_token_ids=(END,),
        min_tokens=LENGTH - 1,
        max_tokens=LONGEST,
    ),
)
"""Temperature alone, which rows share; truncation; and everything that depends on the text so far."""
_SPREAD: Final = 1.5
_LIKENESS: Final = 0.5
_SEED: Final = 0


@cache
def recording() -> RecordedTexts:
    """The model and its draft model; their rows depend on the last two tokens."""
    generator = torch.Generator().manual_seed(_SEED)
    target, noise = torch.randn(2, VOCABULARY**2, VOCABULARY, generator=generator)
    drafter = _LIKENESS * (_SPREAD * target + noise)
    unread = torch.zeros(DEAD + 1, VOCABULARY)
    tokens = range(VOCABULARY)
    after = {(START, token): _state(0, token) for token in tokens}
    after |= {
        (_state(before, last), token): _state(last, token) for before in tokens for last in tokens for token in tokens
    }
    rows = {_TARGET: torch.cat((unread, _SPREAD * target)), _DRAFTER: torch.cat((unread, drafter))}
    return RecordedTexts(PROMPT, LENGTH, after, _state(*PROMPT[-2:]), rows)


_TARGET, _DRAFTER = "target", "drafter"


def _state(before: int, last: int) -> int:
    return DEAD + 1 + before * VOCABULARY + last


def _load(name: str) -> tuple[TargetModel, None]:
    """The one draft model, whatever the name."""
    return RecordedModel(recording(), recording().rows[_DRAFTER]), None


@cache
def law(setting: int) -> dict[tuple[int, ...], float]:
    """The exact probability of every text under one of the settings; a text that ends is shorter."""
    params = SETTINGS[setting]
    found: dict[tuple[int, ...], float] = {}
    pending: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while pending:
        text, chance = pending.pop()
        if len(text) == LENGTH or (END in text and END in params.stop_token_ids):
            found[text] = chance
        else:
            pending += [((*text, token), chance * p) for token, p in _next(text, params)]
    return found


def _next(text: Sequence[int], params: SamplingParams) -> Iterator[tuple[int, float]]:
    """Every token that may follow a text, with its probability."""
    history = (*PROMPT, *text)
    row = recording().rows[_TARGET][_state(*history[-2:])]
    scaled = adjusted(row, history, len(PROMPT), params, params.stop_token_ids) / params.temperature
    kept = torch.nonzero(survivors(scaled, params, score=0.0, mass=0.0)).flatten()
    yield from zip(kept.tolist(), torch.softmax(scaled[kept].double(), 0).tolist(), strict=True)


def _counted(request: Request) -> tuple[int, ...]:
    """The tokens that count; if a text continues after its end, all of them, which makes it an impossible text."""
    text = tuple(request.output_ids)
    goes_on = any(token in request.params.stop_token_ids for token in text[:-1])
    return text if goes_on else text[:LENGTH]


@dataclass(frozen=True, eq=False)
class Miniature:
    """A :class:`TextCounter` of an engine on the miniature; a draw is one text under each setting."""

    config: DrafterConfig
    verifier: Verifier
    seed: int
    plant: Callable[[Parts], Parts] | None = None
    """Plants a fault in the engine's parts."""

    def batches(self, draws: int) -> int:
        return -(-draws // ABREAST)

    def count(self, batch: int) -> torch.Tensor:
        parts = Parts(RecordedModel(recording(), recording().rows[_TARGET]), None, _load, self.config, self.verifier)
        faulty = self.plant(parts) if self.plant else parts
        seeds = range(self.seed + batch * ABREAST, self.seed + (batch + 1) * ABREAST)
        wishes = [replace(params, seed=seed) for seed in seeds for params in SETTINGS]
        texts = [_counted(request) for request in faulty.complete([PROMPT] * len(wishes), wishes)]
        return torch.cat([tally(texts[place :: len(SETTINGS)], law(place)) for place in range(len(SETTINGS))])

    def drawn(self, counts: torch.Tensor) -> int:
        return int(counts.sum()) // len(SETTINGS)

    def fit(self, counts: torch.Tensor) -> Fit:
        # The setting that fits worst, its p-value times the number of settings (Bonferroni).
        laws = [law(place) for place in range(len(SETTINGS))]
        tallies = torch.split(counts, [len(cells) + 1 for cells in laws])
        worst = min((fit(one, cells) for one, cells in zip(tallies, laws, strict=True)), key=lambda one: one.p_value)
        return worst._replace(p_value=min(1.0, worst.p_value * len(SETTINGS)))
