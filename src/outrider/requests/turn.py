"""One request's part in one round.  The stages of the round write it from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from outrider.price import RowPrice
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import Endings, FinishReason, Stopper, Taken
from outrider.tree import SequenceRows, TokenTree
from outrider.verify.base import Verdict


class Budget(NamedTuple):
    """How much one request may draft in one round."""

    nodes: int
    """Most nodes of its tree, anchor included; 1 is plain decoding."""
    drafter: int = 0
    """Index of the drafter that serves it; it may change from round to round."""
    price: RowPrice | None = None
    """What a draft must promise; None uses the drafter's own price."""


PLAIN: Final = Budget(1)


@dataclass(eq=False)
class Turn:
    """One request's part in one round."""

    request: Request
    """Written by the scheduler."""
    forced: int
    """Scheduler: committed tokens to compute before the anchor."""
    most_nodes: int
    """Scheduler: most tree nodes that the request can use, anchor included; 0 where the pass does not reach the
    anchor, so that no token comes of it."""
    most_forced: int = 0
    """Scheduler: how many of these nodes only a grammar can use."""
    budget: Budget = PLAIN
    """Controller; the scheduler cuts it to the free pages."""
    method: str | None = None
    """Drafting: name of the method that serves the turn; None where nothing may be drafted."""
    tree: TokenTree | None = None
    """Drafter, pruned by the controller; None where the pass does not reach the anchor."""
    verdict: Verdict | None = None
    """Rule, cut to what the output takes."""
    taken: Taken | None = None
    """Stopping: what the output takes."""
    stopper: Stopper | None = None
    """Stopping: watches what follows."""
    logprobs: Sequence[TokenLogprob] = ()
    """Log-probabilities of the emitted tokens, if requested."""
    prompt_logprobs: Sequence[TokenLogprob] = ()
    """Log-probabilities of the prompt tokens that the forced rows predict, if requested."""
    error: Exception | None = None
    """Why the request cannot continue after this round."""
    decodes: bool = field(init=False)
    """Whether the turn computes no prompt rows."""
    endings: Endings = field(init=False)
    """Draft paths on which the output has ended."""

    def __post_init__(self) -> None:
        """Start from the state of the output before the round."""
        self.endings = Endings(self.request.stopper)
        self.decodes = self.forced == 0 and self.request.wanted > self.request.prompt_length

    @property
    def reaches_anchor(self) -> bool:
        """Whether this pass yields a token."""
        return self.most_nodes > 0

    @property
    def most_depth(self) -> int:
        """Maximum depth of a draft that can still become text."""
        return max(0, self.request.limit - self.request.wanted - 1)

    @property
    def least_rows(self) -> int:
        """Rows it puts into the pass without drafts."""
        return self.forced + self.reaches_anchor

    @property
    def ended_well(self) -> bool:
        """Whether the output ended without an error; valid once the verdict is known."""
        reason = None if self.taken is None else self.taken.finish_reason
        return reason not in (None, FinishReason.ERROR)

    @property
    def rows(self) -> SequenceRows:
        """The rows for the pass."""
        request, start = self.request, self.request.computed
        return SequenceRows(
            key=request.id,
            context=start,
            forced=tuple(request.inputs[start : start + self.forced]) if self.forced else (),
            tree=self.tree,
            all_logits=request.prompt_top is not None,
        )

    @cached_property
    def kept(self) -> Sequence[int]:
        """Rows of the pass to keep, counted from the request's first; valid once the verdict is known."""
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
    """Number of accepted drafts; they come first among the tokens."""
    text: str = ""
    finished: bool = False
    """Whether the request ended in this round.  The request itself may have ended since."""
