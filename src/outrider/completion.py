"""What the user gets: completions, and pieces of them while they stream."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from outrider.engine.request import Request, TokenLogprob
from outrider.engine.stopping import FinishReason
from outrider.errors import counted
from outrider.metrics import PhaseSeconds, Prediction, SpeculationStats
from outrider.notebook import texts_html

if TYPE_CHECKING:
    from outrider.engine.stopping import TokenStream

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = 60


@dataclass(frozen=True)
class Choice:
    """One of the ``n`` outputs of a prompt."""

    index: int
    """Which of them, from 0."""
    text: str
    """The output's text, without the stop string that ended it."""
    token_ids: tuple[int, ...]
    """The output's tokens, with the one that ended it."""
    finish_reason: FinishReason
    """Why it ended."""
    stop_reason: int | str | None
    """The stop string or stop token id that ended it, where one did."""
    seed: int
    """Together with ``index`` it reproduces the text under the default rule, with speculation on or off."""
    speculation: SpeculationStats
    """What became of the drafts."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """How likely each token was, where the parameters asked for it."""
    error: str | None = None
    """Why it could not go on, where ``finish_reason`` is ``error``; what stands before it is kept."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values another request had computed."""
    from_draft: tuple[bool, ...] = ()
    """Of each token, whether an accepted draft brought it."""

    _decoder: ClassVar[Any] = None
    """Makes what turns the tokens into text one by one; not part of the value, and left behind by pickle."""

    @classmethod
    def of(
        cls, request: Request, from_draft: Sequence[bool] = (), decoder: Callable[[], TokenStream] | None = None
    ) -> Choice:
        """The output of a finished request.

        Args:
            request: it has ended.
            from_draft: of each of its tokens, whether an accepted draft brought it.
            decoder: makes what turned its tokens into text.
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
        )
        object.__setattr__(choice, "_decoder", decoder)
        return choice

    def pieces(self) -> list[tuple[str, bool]]:
        """The text, cut where the source of its tokens changes: each piece with whether accepted drafts brought it."""
        if self._decoder is None:
            return [(self.text, False)] if self.text else []
        stream, found, left = self._decoder(), list[tuple[str, bool]](), len(self.text)
        for token, drafted in zip(self.token_ids, self.from_draft, strict=True):
            text = stream.push(token)[:left]
            left -= len(text)
            if found and found[-1][1] == drafted:
                found[-1] = (found[-1][0] + text, drafted)
            elif text:
                found.append((text, drafted))
        return found

    def __repr__(self) -> str:
        """What a person wants to see of it."""
        ending = f", error={self.error!r}" if self.error else ""
        return (
            f"Choice(index={self.index}, text={_SHORT.repr(self.text)}, {_tokens(self.token_ids)}, "
            f"finish_reason={self.finish_reason.value!r}{ending})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the text with accepted drafts in another shade, and the figures below it."""
        return texts_html([(self.pieces(), self.error)], " · ".join(_counts([self], self.speculation)))

    def __getstate__(self) -> dict[str, Any]:
        """The value alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_decoder"}


@dataclass(frozen=True)
class Completion:
    """The outputs of one prompt.

    ``text``, ``token_ids`` and ``finish_reason`` are the first choice's.
    """

    prompt_token_ids: tuple[int, ...]
    """What the model read."""
    choices: tuple[Choice, ...]
    """The outputs, as many as ``n`` asked for."""
    seconds: PhaseSeconds
    """Time of the call that made it, shared by all prompts of that call and by calls of other threads meanwhile."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """How likely each of the prompt's tokens was, where the parameters asked for it; the first has none."""

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

    @property
    def figures(self) -> str:
        """On one line whether it got faster, where that is known, how fast it is, and what was written."""
        made = self.prediction
        faster = [] if made is None or made.speedup is None else [f"{made.speedup:.2f} × plain (predicted)"]
        speed = f"{self.seconds.tokens_per_second:.1f} tokens/s"
        return " · ".join([*faster, speed, *_counts(self.choices, self.speculation)])

    def __repr__(self) -> str:
        """What a person wants to see of it."""
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
    """A piece of a streamed output: what one round added."""

    index: int
    """Which of the ``n`` outputs it belongs to."""
    text: str
    """What may be shown now; the beginning of a stop string is held back."""
    token_ids: tuple[int, ...]
    """The round's tokens."""
    drafted: int
    """How many of the tokens were accepted drafts; they come first."""
    choice: Choice | None = None
    """The whole output, with its last piece."""

    def __repr__(self) -> str:
        """What a person wants to see of it."""
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
