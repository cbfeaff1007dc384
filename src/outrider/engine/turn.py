"""One request's part in one round: written left to right, each field by the one stage that its line names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from outrider.control.price import RowPrice
from outrider.engine.request import Request, TokenLogprob
from outrider.engine.stopping import Endings, FinishReason, Stopper, Taken
from outrider.tree import SequenceRows, TokenTree
from outrider.verify.base import Verdict


class Budget(NamedTuple):
    """What one request may draft in one round."""

    nodes: int
    """Most nodes of its tree, anchor included; 1 is plain decoding."""
    drafter: int = 0
    """Which of the engine's drafters serves it; another one may in the next round."""
    price: RowPrice | None = None
    """What a draft must promise; None leaves it to the drafter."""


PLAIN: Final = Budget(1)


@dataclass(eq=False)
class Turn:
    """One request's part in one round."""

    request: Request
    """Scheduler."""
    forced: int
    """Scheduler: committed tokens to compute before the anchor."""
    most_nodes: int
    """Scheduler: most tree nodes that the request can use, anchor included; 0 where the pass does not reach the
    anchor, so that no token comes of it."""
    budget: Budget = PLAIN
    """Controller, then cut by the scheduler to the pages there are."""
    tree: TokenTree | None = None
    """Drafter, then the controller's pruning; None where the pass does not reach the anchor."""
    verdict: Verdict | None = None
    """Rule, cut to what the output takes."""
    taken: Taken | None = None
    """Stopping: what the output takes."""
    stopper: Stopper | None = None
    """Stopping: watches what follows."""
    logprobs: Sequence[TokenLogprob] = ()
    """Of the emitted tokens, where they were asked for."""
    prompt_logprobs: Sequence[TokenLogprob] = ()
    """Of the prompt's tokens that this pass's forced rows predict, where they were asked for."""
    error: Exception | None = None
    """Why the request cannot go on after this round."""
    endings: Endings = field(init=False)
    """On which drafted paths the output has ended."""

    def __post_init__(self) -> None:
        """Watch the request's output as it stood before the round."""
        self.endings = Endings(self.request.stopper)

    @property
    def reaches_anchor(self) -> bool:
        """Whether this pass yields a token."""
        return self.most_nodes > 0

    @property
    def least_rows(self) -> int:
        """Rows it puts into the pass without drafts."""
        return self.forced + self.reaches_anchor

    @property
    def decodes(self) -> bool:
        """Whether this pass computes nothing of the prompt."""
        return self.forced == 0

    @property
    def ended_well(self) -> bool:
        """Whether the output has come to an end that is no error; known once the rule has judged."""
        reason = None if self.taken is None else self.taken.finish_reason
        return reason not in (None, FinishReason.ERROR)

    @property
    def rows(self) -> SequenceRows:
        """What goes into the pass."""
        request, start = self.request, self.request.computed
        return SequenceRows(
            key=request.id,
            context=start,
            forced=tuple(request.inputs[start : start + self.forced]) if self.forced else (),
            tree=self.tree,
            all_logits=request.params.prompt_logprobs is not None,
        )

    @cached_property
    def kept(self) -> Sequence[int]:
        """Rows of the pass that stay, counted from the request's first; known once the verdict is."""
        if self.verdict is None:
            return range(self.forced)
        if not self.verdict.path:
            return range(self.forced + 1)
        return [*range(self.forced + 1), *(self.forced + node for node in self.verdict.path)]


@dataclass(frozen=True)
class Progress:
    """What one round did to one request."""

    request: Request
    tokens: tuple[int, ...] = ()
    drafted: int = 0
    """How many of the tokens were accepted drafts; they come first."""
    text: str = ""
    finished: bool = False
    """Whether the request ended with this round; it may have ended since when a later reader asks the request."""
