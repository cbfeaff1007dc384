"""Checks that texts with speculation equal texts without it, greedy and seeded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from outrider.audit.decoys import Answers, Decoys
from outrider.audit.parts import PAGE, Parts
from outrider.audit.report import CheckResult, Remedy
from outrider.audit.tie_rule import Judge, Judgement, rounding
from outrider.config import Speculation
from outrider.drafters.none import NoDraft
from outrider.errors import NumericsError
from outrider.metrics import SpeculationStats
from outrider.requests.request import Request
from outrider.sampling.params import SamplingParams
from outrider.verify import make_verifier

ROW_SLACK: Final = 10.0
"""Log-probabilities may differ by this many roundings of a score, because roundings add up over a row."""
ORDINARY_LOGIT: Final = 16.0
"""The logit whose rounding :data:`ROW_SLACK` multiplies."""
SHARED_PAGES: Final = 4
"""Pages of the prompts that begin alike."""
NOTHING_TAKEN_OVER: Final = Remedy(advice=f"lower --max-tokens, so that prompts of more than {PAGE} tokens have room")
"""For a run in which no prompt reused rows of another."""


@dataclass(frozen=True)
class SamplingCase:
    """Sampling parameters under which texts are compared."""

    name: str
    params: SamplingParams


GREEDY: Final = SamplingCase("greedy", SamplingParams())
PENALTIES: Final = SamplingCase(
    "greedy, penalties",
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.7),
)
SAMPLED: Final = (
    SamplingCase("T 1", SamplingParams(temperature=1.0)),
    SamplingCase("T 0.7, top-p 0.9", SamplingParams(temperature=0.7, top_p=0.9)),
    SamplingCase("T 1.2, top-k 40, min-p 0.02", SamplingParams(temperature=1.2, top_k=40, min_p=0.02)),
    SamplingCase(
        "T 0.8, top-p 0.95, penalties",
        SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.4),
    ),
)


@dataclass(frozen=True)
class PlainTexts:
    """Prompts with their parameters and the texts of plain decoding."""

    setting: SamplingCase
    prompts: tuple[tuple[int, ...], ...]
    params: tuple[SamplingParams, ...]
    plain: tuple[Request, ...]
    end_ids: frozenset[int] = frozenset()
    """Tokens that end every text, in addition to those in its parameters."""

    @property
    def answers(self) -> Answers:
        """Plain decoding's tokens by prompt."""
        answers: dict[tuple[int, ...], list[Sequence[int]]] = {}
        for prompt, request in zip(self.prompts, self.plain, strict=True):
            answers.setdefault(prompt, []).append(request.output_ids)
        return answers


def plainly(parts: Parts) -> Parts:
    """The same engine without drafts, under the default rule, whose texts can be repeated."""
    return replace(parts, config=NoDraft(), verifier=make_verifier(Speculation().verifier))


def decode_plainly(
    parts: Parts, setting: SamplingCase, prompts: Iterable[Sequence[int]], *, tokens: int, seed: int
) -> PlainTexts:
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
    return PlainTexts(setting, copied, params, tuple(plainly(parts).complete(copied, params)))


def related_texts(prompts: Iterable[Sequence[int]], most: int) -> list[tuple[int, ...]]:
    """Make prompts that begin alike from the user's prompts.

    Args:
        prompts: token ids.
        most: longest prompt that leaves room for output.

    Returns:
        A prompt of several pages, some that differ from it in one token each, and one that agrees with it only at the
        first token of each page; each twice.
    """
    joined = [token for prompt in prompts for token in prompt]
    length = min(most, SHARED_PAGES * PAGE + PAGE // 2)
    text = (joined * (length // len(joined) + 1))[:length]
    known = sorted({0, 1, *joined})
    following = {token: known[place - 1] for place, token in enumerate(known)}
    places = range(PAGE - 1, length, PAGE + PAGE // 2 - 1)  # each in another page, at another offset
    near = [(*text[:place], following[text[place]], *text[place + 1 :]) for place in places]
    far = tuple(following[token] if place % PAGE else token for place, token in enumerate(text))
    return [tuple(text), *near, far] * 2


def with_decoys(parts: Parts, batch: PlainTexts) -> Parts:
    """The same engine with a drafter that drafts plain decoding's tokens beside wrong ones."""
    return replace(parts, config=Decoys(batch.answers))


def check_texts(name: str, clean: Parts, parts: Parts, batch: PlainTexts, *, exact: bool) -> CheckResult:
    """Compare speculative texts with plain ones.

    Args:
        name: of the check.
        clean: the engine whose plain decoding is the reference.
        parts: the engine under audit.
        batch: prompts and plain texts.
        exact: require equal tokens; otherwise the tie rule applies.
    """
    try:
        requests = parts.complete(batch.prompts, batch.params)
    except NumericsError as error:
        return CheckResult(name, False, str(error))
    found = Comparison.of(clean, requests, batch, exact=exact)
    if not parts.prefix_cache:
        return found.result(name)
    taken = sum(request.cached_tokens or 0 for request in requests)
    return found.result(name, figures=f"{taken} prompt tokens reused", remedy=None if taken else NOTHING_TAKEN_OVER)


@dataclass(frozen=True)
class Comparison:
    """How speculative texts differ from plain ones."""

    requests: tuple[Request, ...]
    judged: Mapping[int, Sequence[Judgement]]
    """For each text that differs, its tokens judged by plain decoding."""
    gap: float
    """Largest difference of a token's log-probability from plain decoding's."""
    complaints: tuple[str, ...]

    @classmethod
    def of(cls, clean: Parts, requests: Sequence[Request], batch: PlainTexts, *, exact: bool) -> Comparison:
        """Compare tokens and their log-probabilities; arguments as for :func:`check_texts`."""
        pairs = list(zip(requests, batch.plain, strict=True))
        differing = {i: mine.output_ids for i, (mine, plain) in enumerate(pairs) if mine.output_ids != plain.output_ids}
        judged = _judge(clean, batch, differing)
        gap = max(_row_gap(mine, plain, judged.get(i)) for i, (mine, plain) in enumerate(pairs))
        broken = [_complaint(i, judgements, exact) for i, judgements in judged.items()]
        allowed = ROW_SLACK * rounding(ORDINARY_LOGIT, clean.dtype)
        if gap > allowed:
            broken.append(f"log-probabilities differ by {gap:.1e}; rounding explains {allowed:.0e}")
        return cls(tuple(requests), judged, gap, tuple(complaint for complaint in broken if complaint))

    def result(
        self, name: str, *, complaints: Sequence[str] = (), figures: str = "", remedy: Remedy | None = None
    ) -> CheckResult:
        """The result of a check.

        Args:
            name: of the check.
            complaints: what else is wrong.
            figures: more details.
            remedy: for a check that had nothing to compare.
        """
        same = f"{len(self.requests) - len(self.judged)} of {len(self.requests)} texts identical"
        seen = ", ".join(filter(None, (same, _drafts(self.requests), figures)))
        if complaints := [*self.complaints, *complaints]:
            return CheckResult(name, False, "; ".join([*complaints[:2], seen]))
        flips = sum(judgement.flip for judgements in self.judged.values() for judgement in judgements)
        parts = [seen, *([_ties(self.judged)] if self.judged else []), f"log-probabilities within {self.gap:.1e}"]
        return CheckResult(name, True, "; ".join(parts), flips, remedy)


def _judge(clean: Parts, batch: PlainTexts, texts: Mapping[int, Sequence[int]]) -> dict[int, list[Judgement]]:
    """Force texts through plain decoding and judge every token."""
    if not texts:
        return {}
    judges = {i: _judge_of(batch, i, text, clean) for i, text in texts.items()}
    params = [SamplingParams(max_tokens=len(texts[i]), processors=(judge,)) for i, judge in judges.items()]
    plainly(clean).complete([batch.prompts[i] for i in judges], params)
    return {i: judge.judgements for i, judge in judges.items()}


def _judge_of(batch: PlainTexts, index: int, text: Sequence[int], clean: Parts) -> Judge:
    params = batch.params[index]
    ends = {*params.stop_token_ids, *batch.end_ids}
    choice = batch.plain[index].choice
    return Judge(len(batch.prompts[index]), text, params, clean.dtype, end_ids=ends, choice=choice)


def _row_gap(request: Request, plain: Request, judgements: Sequence[Judgement] | None) -> float:
    true = [found.logprob for found in (plain.logprobs if judgements is None else judgements)]
    return max(abs(mine.logprob - other) for mine, other in zip(request.logprobs, true, strict=True))


def _complaint(index: int, judgements: Sequence[Judgement], exact: bool) -> str:
    for place, found in enumerate(judgements):
        if found.flip and exact:
            return f"text {index + 1} differs at token {place + 1}"
        if not found.tied:
            return f"text {index + 1}, token {place + 1} is {found.shortfall:.2g} below the best choice"
    return f"text {index + 1} differs from plain decoding, though each token alone is possible" if exact else ""


def _ties(judged: Mapping[int, Sequence[Judgement]]) -> str:
    flips = [found for judgements in judged.values() for found in judgements if found.flip]
    return f"{len(flips)} ties flipped, {max((flip.shortfall for flip in flips), default=0.0):.1e} apart at most"


def _drafts(requests: Sequence[Request]) -> str:
    total = SpeculationStats()
    for request in requests:
        total.merge(request.stats)
    return f"{sum(total.accepted)} drafts accepted of {sum(total.drafted)}"
