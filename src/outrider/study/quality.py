"""A drafter's quality as a language model: the perplexity of the target's answers under it.

The engine decodes each answer again under a rule that emits the target's tokens, whatever was drafted.  After each
token the drafter drafts one token, and its distribution at temperature 1 comes from that draft.  So a head is judged by
its first step from the target's true hidden rows, and every network in the precision it drafts in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from outrider.bench.runner import Models, Sample
from outrider.control.fair_share import FairShare
from outrider.drafters.base import DrafterConfig
from outrider.engine.build import build_engine
from outrider.engine.driver import Driver
from outrider.kv.pool import KVPool
from outrider.price import FREE
from outrider.sampling.params import SamplingParams
from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict

_PAGE: Final = 16
_SPARE_ROWS: Final = 512
"""Cache rows for drafts after a text."""


@dataclass(frozen=True)
class Quality:
    """The likelihood of the target's answers under a drafter."""

    loss: float = 0.0
    """Negative log-likelihood in nats, summed over the judged tokens."""
    judged: int = 0
    """Tokens to which the drafter gave a probability."""
    tokens: int = 0
    """All tokens of the answers except the first of each, which is never drafted."""
    reason: str | None = None
    """Why there is no perplexity; None if there is one."""

    @property
    def perplexity(self) -> float | None:
        """``exp`` of the mean negative log-likelihood of the judged tokens; None without any."""
        return math.exp(self.loss / self.judged) if self.judged else None

    def to_json(self) -> dict[str, Any]:
        """The quality as a JSON object."""
        return {
            "perplexity": self.perplexity,
            "mean_nll": self.loss / self.judged if self.judged else None,
            "judged": self.judged,
            "tokens": self.tokens,
            "reason": self.reason,
        }


def no_quality(config: DrafterConfig) -> str | None:
    """Why a method has no distribution to judge; None if it has one."""
    if config.needs.deterministic:
        return "a lookup has no distribution"
    if config.needs.merged:
        return "it joins the drafts of several models"
    return None


def quality(
    models: Models, config: DrafterConfig, answers: Sequence[Sample], advance: Callable[[], None] = lambda: None
) -> Quality:
    """Judge a drafter by the target's answers.

    Args:
        models: the models.
        config: the drafter.
        answers: completions by plain decoding.
        advance: called after each answer.
    """
    if (reason := no_quality(config)) is not None:
        return Quality(reason=reason)
    rule = Dictation()
    rows = max(len(answer.prompt.token_ids) + len(answer.token_ids) for answer in answers) + _SPARE_ROWS
    engine = build_engine(
        models.target,
        models.tokenizer,
        config,
        rule,
        KVPool(rows, _PAGE, prefix_cache=False),
        load=models.load,
        heads=models.heads,
        # At a price, a drafter would be silent where it is unsure.
        controller=FairShare(min(2, config.most_nodes), FREE),
        ids_alone=True,
    )
    loss, judged, tokens = 0.0, 0, 0
    with Driver(engine, threaded=False) as driver:
        for answer in answers:
            # The probability is 0 if the draft vocabulary lacks the token or nothing was drafted.
            losses = [-math.log(p) for p in rule.probabilities(driver, answer) if p > 0.0]
            loss, judged, tokens = loss + sum(losses), judged + len(losses), tokens + len(answer.token_ids[1:])
            advance()
    return Quality(loss, judged, tokens, None if judged else "it gave no token of the answers a probability")


class Dictation:
    """An acceptance rule that emits a known text and notes the drafter's probability of each token."""

    name: ClassVar[str] = "dictation"
    lossless: ClassVar[bool] = False
    draws: ClassVar[Draws] = Draws.INDEPENDENT
    trees: ClassVar[bool] = True
    merged: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False

    def __init__(self) -> None:
        self._left: deque[int] = deque()
        self._noted: list[float] = []

    def accept(self, tree: TokenTree, rows: Rows) -> Verdict:
        token = self._left.popleft()
        laws = [candidate.q for candidate in tree.candidates if candidate.q is not None]
        self._noted.append(float(laws[0][token]) if laws else 0.0)
        return Verdict.of(tree, (), token)

    def probabilities(self, driver: Driver, answer: Sample) -> list[float]:
        """The drafter's probability of each token of an answer except the first; 0 if it drafted nothing."""
        self._left, self._noted = deque(answer.token_ids), []
        # One more token, so that the last one is drafted too.
        params = SamplingParams(temperature=1.0, max_tokens=len(self._left) + 1, ignore_eos=True)
        call = driver.submit([(answer.prompt.token_ids, params)])
        while self._left and call.open:
            driver.step()
        driver.cancel(call)
        return self._noted[1:]
