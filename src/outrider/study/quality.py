"""How good a drafter is as a language model: the perplexity of the target's own answers under it.

The engine decodes each answer anew under a rule that emits what the target wrote, whatever was drafted.  The drafter
is asked for one draft after each token, and its distribution at temperature 1 is read off the draft.  So a head is
judged by its first step from the target's true hidden rows, and every network in the precision it drafts in.
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
from outrider.options import Role, with_roles
from outrider.sampling.params import SamplingParams
from outrider.tree import TokenTree
from outrider.verify.base import Draws, Rows, Verdict

_PAGE: Final = 16
_SPARE_ROWS: Final = 512
"""Cache rows past a text, for what is drafted behind it."""


@dataclass(frozen=True)
class Quality:
    """What a drafter's distribution says of the target's answers."""

    loss: float = 0.0
    """Negative log-likelihood in nats, summed over the judged tokens."""
    judged: int = 0
    """Tokens to which the drafter gave a probability."""
    tokens: int = 0
    """Tokens asked for: all of the answers but the first of each, which is never drafted."""
    reason: str | None = None
    """Why there is no figure; None where there is one."""

    @property
    def perplexity(self) -> float | None:
        """``exp`` of the mean negative log-likelihood of the judged tokens; None where none was."""
        return math.exp(self.loss / self.judged) if self.judged else None

    def to_json(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "perplexity": self.perplexity,
            "mean_nll": self.loss / self.judged if self.judged else None,
            "judged": self.judged,
            "tokens": self.tokens,
            "reason": self.reason,
        }


def no_quality(config: DrafterConfig) -> str | None:
    """Why a method has no distribution of its own to judge; None where it has."""
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
        models: what is in memory.
        config: the drafter.
        answers: completions of the target decoding plainly.
        advance: called after each answer.
    """
    if (reason := no_quality(config)) is not None:
        return Quality(reason=reason)
    # A drafter that weighs the cost of a row would be silent just where it is unsure.
    config = with_roles(config, {Role.ROW_COST: 0.0})
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
        controller=FairShare(min(2, config.most_nodes)),
        ids_alone=True,
    )
    loss, judged, tokens = 0.0, 0, 0
    with Driver(engine, threaded=False) as driver:
        for answer in answers:
            # Nought where a reduced draft vocabulary lacks the token, or nothing was drafted.
            losses = [-math.log(p) for p in rule.probabilities(driver, answer) if p > 0.0]
            loss, judged, tokens = loss + sum(losses), judged + len(losses), tokens + len(answer.token_ids[1:])
            advance()
    return Quality(loss, judged, tokens, None if judged else "it gave no token of the answers a probability")


class Dictation:
    """A rule that judges no draft: it emits a known text, and notes what probability the drafter gave each token."""

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
        """The drafter's probability of each token of an answer but the first; 0 where it drafted nothing."""
        self._left, self._noted = deque(answer.token_ids), []
        # The last token is drafted for too, where another could follow it.
        params = SamplingParams(temperature=1.0, max_tokens=len(self._left) + 1, ignore_eos=True)
        call = driver.submit([(answer.prompt.token_ids, params)])
        while self._left and call.open:
            driver.step()
        driver.cancel(call)
        return self._noted[1:]
