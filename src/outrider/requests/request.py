"""The state of one request: what the scheduler needs, and what the user gets."""

from __future__ import annotations

import enum
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.errors import OutriderError
from outrider.metrics import SpeculationStats
from outrider.requests.stopping import FinishReason, Stopper
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import RequestSampler


class Status(enum.Enum):
    """The state of a request in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of one token under the model, before any sampling parameter."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable (token id, logprob), best first; the chosen token need not be among them."""

    def __repr__(self) -> str:
        """A representation with four digits."""
        top = "".join(f"({token}, {value:.4g}), " for token, value in self.top)
        return f"TokenLogprob(token_id={self.token_id}, logprob={self.logprob:.4g}, top=({top.rstrip()}))"


@dataclass(eq=False)
class Times:
    """When a request reached each stage, on the clock of ``time.perf_counter``; 0 where it has not."""

    queued: float = field(default_factory=time.perf_counter)
    admitted: float = 0.0
    """When its first row was scheduled."""
    first_token: float = 0.0
    ended: float = 0.0


@dataclass(eq=False)
class Request:
    """One sequence of tokens being completed.  Only the scheduler writes it.

    Invariant: between rounds ``computed ≤ len(inputs) − 1``, equal once decoding.
    """

    id: str
    inputs: list[int]
    """Committed token ids, prompt first."""
    prompt_length: int
    params: SamplingParams
    seed: int
    choice: int
    limit: int
    """``inputs`` never grows past this."""
    sampler: RequestSampler
    stopper: Stopper
    computed: int = 0
    """Valid rows of the target's cache."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; None until the request is first admitted."""
    awaited: tuple[Request, int] | None = None
    """A running request, and how many of its rows this one waits to reuse."""
    refused_at: int = -1
    """Free rows of the cache when this request was last not admitted."""
    round_number: int = 0
    """Rounds begun.  It keys the dice of ratio rules, so it never decreases."""
    status: Status = Status.WAITING
    arrival: int = 0
    """Place in the order in which requests were queued."""
    preempted: bool = False
    """Whether it ran before and waits to go on."""
    encoder_inputs: Sequence[int] | None = None
    """Token ids that an encoder reads before ``inputs`` are decoded; None for a model without one."""
    most_nodes: int = sys.maxsize
    """Most nodes of a draft tree that the user allows, anchor included; 1 is plain decoding."""
    prediction: Sequence[int] = ()
    """Token ids that the output probably resembles."""
    methods: dict[str, int] = field(default_factory=dict)
    """Decoding rounds in which each drafting method served the request."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    failure: Exception | None = None
    """Why the request could not go on, if its finish reason is ``error``."""
    times: Times = field(default_factory=Times)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def error(self) -> str | None:
        """The failure in a sentence for the user; an unexpected one is named with its type."""
        if self.failure is None or isinstance(self.failure, OutriderError):
            return None if self.failure is None else str(self.failure)
        return f"the round failed with {type(self.failure).__name__}: {self.failure}; the request was ended"

    @property
    def wanted(self) -> int:
        """Rows the cache should hold; the scheduler lets ``computed`` catch up with it."""
        return len(self.inputs)

    @property
    def pending(self) -> int:
        """Committed tokens whose rows are missing; 1 once decoding: the anchor."""
        return len(self.inputs) - self.computed

    @property
    def prompt_top(self) -> int | None:
        """How many of the best tokens to report beside each of the prompt's; None reports none.

        The first output of a prompt reports for all of them.
        """
        return self.params.prompt_logprobs if self.choice == 0 else None

    @property
    def reusable(self) -> int:
        """Most rows that may be reused instead of computed.

        The last two are computed always, so that the first token comes from a prompt's pass as it does without; and so
        is every row that a log-probability of the prompt still waits for.
        """
        if self.prompt_top is not None and len(self.prompt_logprobs) < self.prompt_length:
            return len(self.prompt_logprobs) - 1
        return max(0, self.wanted - 2)

    @property
    def salt(self) -> str | None:
        """What rows depend on besides token ids: only requests with the same salt reuse each other's rows.

        None is a request that says nothing of it.
        """
        if self.encoder_inputs is None:
            return self.params.cache_salt
        read = hashlib.sha256(repr(tuple(self.encoder_inputs)).encode()).hexdigest()
        return f"{read} {self.params.cache_salt!r}"

    @property
    def tenant(self) -> str | None:
        """Whose request it is, for fair admission."""
        return self.params.cache_salt if self.params.tenant is None else self.params.tenant

    @property
    def service_order(self) -> tuple[int, int]:
        """Sorts running requests: the last is preempted first."""
        return self.params.priority, self.arrival

    @property
    def method(self) -> str | None:
        """The drafting method that served most rounds; None if none did."""
        return max(self.methods, key=self.methods.__getitem__, default=None)

    @property
    def output_ids(self) -> list[int]:
        """Emitted token ids."""
        return self.inputs[self.prompt_length :]
