"""Checks 1 and 2: text with speculation is text without it, greedy and seeded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from outrider.audit.decoys import Answers, Decoys
from outrider.audit.parts import PAGE, Parts
from outrider.audit.report import CheckResult
from outrider.drafters.none import NoDraft
from outrider.errors import NumericsError
from outrider.metrics import SpeculationStats
from outrider.request import Request
from outrider.sampling.params import SamplingParams
from outrider.tie import Judge, Judgement, rounding

ROW_SLACK: Final = 10.0
"""Log-probabilities may differ by this many roundings of a score: they add up over a whole row."""
ORDINARY_LOGIT: Final = 16.0
"""Size of the logits whose rounding is meant there."""
SHARED_PAGES: Final = 4
"""Pages of the prompts that begin alike."""


@dataclass(frozen=True)
class Setting:
    """Sampling parameters under which texts are compared."""

    name: str
    params: SamplingParams


GREEDY: Final = Setting("greedy", SamplingParams())
PENALTIES: Final = Setting(
    "greedy, penalties",
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.7),
)
SAMPLED: Final = (
    Setting("T 1", SamplingParams(temperature=1.0)),
    Setting("T 0.7, top-p 0.9", SamplingParams(temperature=0.7, top_p=0.9)),
    Setting("T 1.2, top-k 40, min-p 0.02", SamplingParams(temperature=1.2, top_k=40, min_p=0.02)),
    Setting(
        "T 0.8, top-p 0.95, penalties",
        SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.4),
    ),
)


@dataclass(frozen=True)
class Batch:
    """Prompts with their parameters, and what plain decoding makes of them."""

    setting: Setting
    prompts: tuple[tuple[int, ...], ...]
    params: tuple[SamplingParams, ...]
    plain: tuple[Request, ...]

    @property
    def answers(self) -> Answers:
        """Plain decoding's tokens by prompt and seed."""
        return {
            (prompt, request.seed): request.output_ids for prompt, request in zip(self.prompts, self.plain, strict=True)
        }


def plainly(parts: Parts) -> Parts:
    """The same target with nothing drafted."""
    return replace(parts, config=NoDraft())


def decode_plainly(
    parts: Parts, setting: Setting, prompts: Iterable[Sequence[int]], *, tokens: int, seed: int
) -> Batch:
    """Complete prompts without speculation.

    Args:
        parts: the engine's parts.
        setting: how tokens are chosen.
        prompts: token ids.
        tokens: tokens per text.
        seed: the first seed; every text has its own.
    """
    copied = tuple(map(tuple, prompts))
    params = tuple(
        replace(setting.params, max_tokens=tokens, seed=seed + index, logprobs=0) for index in range(len(copied))
    )
    return Batch(setting, copied, params, tuple(plainly(parts).complete(copied, params)))


def related_texts(prompts: Iterable[Sequence[int]], most: int) -> list[tuple[int, ...]]:
    """Prompts that begin alike, made of the user's: one of some pages, others that part from it here or there, twice.

    Args:
        prompts: token ids.
        most: longest prompt that leaves room for output.

    Returns:
        The prompt; some that differ from it in one token each; one that agrees with it only where a page begins.
    """
    joined = [token for prompt in prompts for token in prompt]
    length = min(most, SHARED_PAGES * PAGE + PAGE // 2)
    text = (joined * (length // len(joined) + 1))[:length]
    known = sorted({0, 1, *joined})
    following = {token: known[place - 1] for place, token in enumerate(known)}
    places = range(PAGE - 1, length, PAGE + PAGE // 2 - 1)  # another place of another page each time
    near = [(*text[:place], following[text[place]], *text[place + 1 :]) for place in places]
    far = tuple(following[token] if place % PAGE else token for place, token in enumerate(text))
    return [tuple(text), *near, far] * 2


def with_decoys(parts: Parts, batch: Batch) -> Parts:
    """The same engine with a drafter that hides plain decoding's tokens among wrong ones."""
    return replace(parts, config=Decoys(batch.answers))


def check_texts(name: str, clean: Parts, parts: Parts, batch: Batch, *, exact: bool) -> CheckResult:
    """Compare speculative texts with plain ones.

    Args:
        name: of the check.
        clean: the engine whose plain decoding is the judge.
        parts: the engine under audit.
        batch: prompts and plain texts.
        exact: demand equal tokens; otherwise the tie rule holds.
    """
    try:
        requests = parts.complete(batch.prompts, batch.params)
    except NumericsError as error:
        return CheckResult(name, False, str(error))
    differing = {
        index: request.output_ids
        for index, (request, plain) in enumerate(zip(requests, batch.plain, strict=True))
        if request.output_ids != plain.output_ids
    }
    judged = _judge(clean, batch, differing)
    gap = max(_row_gap(requests[i], batch.plain[i], judged.get(i)) for i in range(len(requests)))
    broken = [_complaint(i, judgements, exact) for i, judgements in judged.items()]
    allowed = ROW_SLACK * rounding(ORDINARY_LOGIT, clean.dtype)
    if gap > allowed:
        broken.append(f"log-probabilities are off by {gap:.1e}, where rounding explains {allowed:.0e}")
    found = sum(request.cached_tokens or 0 for request in requests)
    if parts.prefix_cache and not found:
        broken.append("no row was taken over, so nothing was compared")
    complaints = [complaint for complaint in broken if complaint]
    flips = sum(judgement.flip for judgements in judged.values() for judgement in judgements)
    figures = f"{len(requests) - len(differing)} of {len(requests)} texts identical, {_drafts(requests)}"
    figures += f", {found} prompt tokens taken over" if found else ""
    rows = f"log-probabilities within {gap:.1e}"
    return CheckResult(
        name,
        not complaints,
        "; ".join(
            [*complaints[:2], figures] if complaints else [figures, _ties(judged), rows] if judged else [figures, rows]
        ),
        0 if complaints else flips,
    )


def _judge(clean: Parts, batch: Batch, texts: Mapping[int, Sequence[int]]) -> dict[int, list[Judgement]]:
    """Force texts through plain decoding; every token of each is judged."""
    if not texts:
        return {}
    judges = {i: Judge(len(batch.prompts[i]), text, batch.params[i], clean.dtype) for i, text in texts.items()}
    params = [SamplingParams(max_tokens=len(texts[i]), processors=(judge,)) for i, judge in judges.items()]
    plainly(clean).complete([batch.prompts[i] for i in judges], params)
    return {i: judge.judgements for i, judge in judges.items()}


def _row_gap(request: Request, plain: Request, judgements: Sequence[Judgement] | None) -> float:
    """How far the log-probability of any token lies from what plain decoding gives the same text."""
    true = [found.logprob for found in (plain.logprobs if judgements is None else judgements)]
    return max(abs(mine.logprob - other) for mine, other in zip(request.logprobs, true, strict=True))


def _complaint(index: int, judgements: Sequence[Judgement], exact: bool) -> str:
    for place, found in enumerate(judgements):
        if found.flip and exact:
            return f"text {index + 1} differs at token {place + 1}"
        if not found.tied:
            return f"text {index + 1}, token {place + 1} is {found.shortfall:.2g} below the best choice"
    return ""


def _ties(judged: Mapping[int, Sequence[Judgement]]) -> str:
    flips = [found for judgements in judged.values() for found in judgements if found.flip]
    return f"{len(flips)} ties flipped, {max((flip.shortfall for flip in flips), default=0.0):.1e} apart at most"


def _drafts(requests: Sequence[Request]) -> str:
    total = SpeculationStats()
    for request in requests:
        total.merge(request.stats)
    return f"{sum(total.accepted)} drafts accepted of {sum(total.drafted)}"
