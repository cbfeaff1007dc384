"""Checks of the dice through the real sampler: a model of five tokens, whose texts are enumerated under any parameters.

The redraws of recorded rows look their distributions up.  Here nothing is looked up: rows become distributions as they
do for a user, with penalties, bias, minimum length, temperature and truncation, each with the drafts on its own path,
for the drafter and for the acceptance rule.  The exact law comes from :mod:`outrider.audit.tie_rule`, which works
from the definitions and shares no code with the sampler.
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
from outrider.engine.request import Request
from outrider.models.base import TargetModel
from outrider.sampling.params import SamplingParams
from outrider.verify.base import Verifier

VOCABULARY: Final = 5
LENGTH: Final = 4
"""Tokens whose joint frequencies are compared: the first comes from the prompt's pass, the others may be drafted."""
PROMPT: Final = (0, 0, 1, 0, 2, 1, 1, 2, 2, 0)
"""Every pair of its three tokens, so that lookup finds what to draft; the other two tokens are new when they come."""
END: Final = 4
LONGEST: Final = LENGTH + 1
"""The text goes on, so that drafts of full depth stand behind the last token that counts."""
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
"""Temperature alone, which rows share; truncation; and all that depends on the text so far."""
_SPREAD: Final = 1.5
_LIKENESS: Final = 0.5
_SEED: Final = 0


@cache
def recording() -> RecordedTexts:
    """The model and one that drafts for it: their rows depend on the last two tokens, and are the same everywhere."""
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
    """Every draft model the user named is the same one here."""
    return RecordedModel(recording(), recording().rows[_DRAFTER]), None


@cache
def law(setting: int) -> dict[tuple[int, ...], float]:
    """The exact probability of every text under one of the settings; one that meets its end is shorter."""
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
    """The tokens that count; all of them, which are none of the possible texts, where a text goes on behind its end."""
    text = tuple(request.output_ids)
    goes_on = any(token in request.params.stop_token_ids for token in text[:-1])
    return text if goes_on else text[:LENGTH]


@dataclass(frozen=True, eq=False)
class Miniature:
    """One engine on the miniature, requests under all settings side by side: a :class:`TextCounter`.

    A draw is one text of each setting.
    """

    config: DrafterConfig
    verifier: Verifier
    seed: int
    plant: Callable[[Parts], Parts] | None = None
    """Puts a fault into the engine's parts."""

    def batches(self, draws: int) -> int:
        return -(-draws // ABREAST)

    def count(self, batch: int) -> torch.Tensor:
        """The settings' tallies lie one behind the other."""
        parts = Parts(RecordedModel(recording(), recording().rows[_TARGET]), None, _load, self.config, self.verifier)
        faulty = self.plant(parts) if self.plant else parts
        seeds = range(self.seed + batch * ABREAST, self.seed + (batch + 1) * ABREAST)
        wishes = [replace(params, seed=seed) for seed in seeds for params in SETTINGS]
        texts = [_counted(request) for request in faulty.complete([PROMPT] * len(wishes), wishes)]
        return torch.cat([tally(texts[place :: len(SETTINGS)], law(place)) for place in range(len(SETTINGS))])

    def drawn(self, counts: torch.Tensor) -> int:
        return int(counts.sum()) // len(SETTINGS)

    def fit(self, counts: torch.Tensor) -> Fit:
        """The setting that fits worst, its odds times the number of settings."""
        laws = [law(place) for place in range(len(SETTINGS))]
        tallies = torch.split(counts, [len(cells) + 1 for cells in laws])
        worst = min((fit(one, cells) for one, cells in zip(tallies, laws, strict=True)), key=lambda one: one.p_value)
        return worst._replace(p_value=min(1.0, worst.p_value * len(SETTINGS)))
