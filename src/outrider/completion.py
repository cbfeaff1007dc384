"""What the user gets: completions, and pieces of them while they stream."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.metrics import PhaseSeconds, Prediction, SpeculationStats
from outrider.request import Request, TokenLogprob
from outrider.stopping import FinishReason


@dataclass(frozen=True)
class Choice:
    """One of the ``n`` outputs of a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop string or stop token id that ended it, where one did."""
    seed: int
    """Together with ``index`` it reproduces the text under the default rule, with speculation on or off."""
    speculation: SpeculationStats
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    cached_tokens: int = 0
    """Prompt tokens whose keys and values another request had computed."""

    @classmethod
    def of(cls, request: Request) -> Choice:
        """The output of a finished request."""
        assert request.finish_reason is not None
        return cls(
            index=request.choice,
            text="".join(request.text),
            token_ids=tuple(request.output_ids),
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            seed=request.seed,
            speculation=request.stats,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
            error=request.error,
            cached_tokens=request.cached_tokens or 0,
        )


@dataclass(frozen=True)
class Completion:
    """The outputs of one prompt.

    ``text``, ``token_ids`` and ``finish_reason`` are the first choice's.
    """

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    seconds: PhaseSeconds
    """Time of the call that made it, shared by all prompts of that call."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens the first choice did not have to compute; the others take over what it did."""
        return self.choices[0].cached_tokens

    @property
    def prediction(self) -> Prediction | None:
        """Cost coefficient and estimated speedup of a prompt completed alone; None where nothing was drafted."""
        return Prediction.of(self.speculation, self.seconds)

    @property
    def speculation(self) -> SpeculationStats:
        """Drafting counts of all choices together."""
        total = SpeculationStats()
        for choice in self.choices:
            total.merge(choice.speculation)
        return total


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed output: what one round added."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    drafted: int
    """How many of the tokens were accepted drafts; they come first."""
    choice: Choice | None = None
    """The whole output, with its last piece."""
