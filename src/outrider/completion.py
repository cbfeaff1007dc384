"""Results: completions, their choices, and the chunks of a stream."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from outrider.errors import counted
from outrider.metrics import PhaseSeconds, Prediction, SpeculationStats
from outrider.notebook import texts_html
from outrider.requests.request import Request, TokenLogprob
from outrider.requests.stopping import FinishReason

if TYPE_CHECKING:
    from outrider.requests.stopping import TokenStream

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = 60


@dataclass(frozen=True)
class Choice:
    """One of the ``n`` outputs of a prompt."""

    index: int
    """Its index among the ``n`` outputs, from 0."""
    text: str
    """The text, without the stop string that ended it."""
    token_ids: tuple[int, ...]
    """The output tokens, with the one that ended the output."""
    finish_reason: FinishReason
    """Why the output ended."""
    stop_reason: int | str | None
    """The stop string or id of the request's own that ended the output; otherwise None, also at the model's end."""
    seed: int
    """The seed; with ``index`` it reproduces the text under the default rule, with speculation on or off."""
    speculation: SpeculationStats
    """Counts of proposed, tested and accepted drafts."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Log-probabilities of the tokens, if requested."""
    error: str | None = None
    """The error message if ``finish_reason`` is ``error``; the output before the error is kept."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    from_draft: tuple[bool, ...] = ()
    """For each token, whether it was an accepted draft."""
    algorithm: str | None = None
    """The drafting method that served most rounds; None if none did."""

    _decoder: ClassVar[Any] = None
    """Makes the incremental decoder of the tokens; not part of the value, and not pickled."""

    @classmethod
    def of(
        cls, request: Request, from_draft: Sequence[bool] = (), decoder: Callable[[], TokenStream] | None = None
    ) -> Choice:
        """The output of a finished request.

        Args:
            request: the finished request.
            from_draft: for each token, whether it was an accepted draft.
            decoder: makes the incremental decoder of its tokens.
        """
        assert request.finish_reason is not None
        choice = cls(
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
            from_draft=tuple(from_draft),
            algorithm=request.method,
        )
        object.__setattr__(choice, "_decoder", decoder)
        return choice

    def pieces(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether it consists of accepted drafts."""
        if self._decoder is None:
            return [(self.text, False)] if self.text else []
        stream, found, left = self._decoder(), list[tuple[str, bool]](), len(self.text)
        for token, drafted in zip(self.token_ids, self.from_draft, strict=True):
            text = stream.push(token)[:left]
            left -= len(text)
            add_piece(found, text, drafted)
        return found

    def __repr__(self) -> str:
        """A short representation."""
        ending = f", error={self.error!r}" if self.error else ""
        return (
            f"Choice(index={self.index}, text={_SHORT.repr(self.text)}, {_tokens(self.token_ids)}, "
            f"finish_reason={self.finish_reason.value!r}{ending})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the text with accepted drafts in another shade, and the figures below it."""
        return texts_html([(self.pieces(), self.error)], " · ".join(_counts([self], self.speculation)))

    def __getstate__(self) -> dict[str, Any]:
        """The state without the decoder."""
        return {name: value for name, value in self.__dict__.items() if name != "_decoder"}


@dataclass(frozen=True)
class Completion:
    """The outputs of one prompt.

    ``text``, ``token_ids`` and ``finish_reason`` are those of the first choice.
    """

    prompt_token_ids: tuple[int, ...]
    """Token ids of the prompt."""
    choices: tuple[Choice, ...]
    """The ``n`` outputs."""
    seconds: PhaseSeconds
    """Time of the call; it includes the other prompts of the call, and other threads' requests in the meantime."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Log-probabilities of the prompt's tokens, if requested; None for the first token."""

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
        """Prompt tokens that the first choice took from the prefix cache; the other choices reuse its rows."""
        return self.choices[0].cached_tokens

    @property
    def prediction(self) -> Prediction | None:
        """Cost coefficient and estimated speedup, for a prompt completed alone; None if nothing was drafted."""
        return Prediction.of(self.speculation, self.seconds)

    @property
    def speculation(self) -> SpeculationStats:
        """Counts of drafts, summed over all choices."""
        total = SpeculationStats()
        for choice in self.choices:
            total.merge(choice.speculation)
        return total

    @property
    def figures(self) -> str:
        """On one line whether it got faster, where that is known, how fast it is, and what was written."""
        made = self.prediction
        faster = [] if made is None or made.speedup is None else [f"{made.speedup:.2f} × plain (predicted)"]
        speed = f"{self.seconds.tokens_per_second:.1f} tokens/s"
        return " · ".join([*faster, speed, *_counts(self.choices, self.speculation)])

    def __repr__(self) -> str:
        """A short representation."""
        several = f", choices={len(self.choices)}" if len(self.choices) != 1 else ""
        return (
            f"Completion(text={_SHORT.repr(self.text)}, {_tokens(self.token_ids)}, "
            f"finish_reason={self.finish_reason.value!r}{several})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the text with accepted drafts in another shade, and the figures below it."""
        return texts_html([(choice.pieces(), choice.error) for choice in self.choices], self.figures)


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed output: the tokens of one round."""

    index: int
    """Index of the output, among the ``n``."""
    text: str
    """The text that can be shown now; a possible start of a stop string is held back."""
    token_ids: tuple[int, ...]
    """The tokens of the round."""
    drafted: int
    """Number of accepted drafts among the tokens; they come first."""
    choice: Choice | None = None
    """The whole output; only in the last chunk."""

    def __repr__(self) -> str:
        """A short representation."""
        end = f", finish_reason={self.choice.finish_reason.value!r}" if self.choice else ""
        return f"Chunk(index={self.index}, text={self.text!r}, {_tokens(self.token_ids)}, drafted={self.drafted}{end})"


def _counts(choices: Sequence[Choice], stats: SpeculationStats) -> list[str]:
    """Tokens of a round, tokens in all, endings, and accepted drafts."""
    endings = dict.fromkeys(choice.finish_reason.value for choice in choices)
    parts = [counted(sum(len(choice.token_ids) for choice in choices), "token"), ", ".join(endings)]
    if not sum(stats.tested):
        return parts
    accepted = sum(sum(choice.from_draft) for choice in choices)
    per_round = f"{stats.mean_accepted_length:.2f} tokens/round"
    return [per_round, *parts, f"{counted(accepted, 'accepted draft')}, marked"]


def _tokens(ids: Sequence[int]) -> str:
    return f"tokens={len(ids)}"


def add_piece(pieces: list[tuple[str, bool]], text: str, drafted: bool) -> None:
    """Add text to a list of pieces; it joins the last one if both were drafted, or neither.

    Args:
        pieces: text, with whether it consists of accepted drafts.
        text: what follows.
        drafted: whether it consists of accepted drafts.
    """
    if pieces and pieces[-1][1] == drafted:
        pieces[-1] = (pieces[-1][0] + text, drafted)
    elif text:
        pieces.append((text, drafted))
