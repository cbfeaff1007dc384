"""Finds the end of an output, token by token, before anything is committed.

An end may fall anywhere inside an accepted path; text, token ids, logprobs and usage all stop at the same token.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.sampling.params import SamplingParams


class FinishReason(enum.StrEnum):
    """Why an output ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TokenStream(Protocol):
    """Turns token ids into text one by one, holding back incomplete characters."""

    def push(self, token_id: int) -> str:
        """The text a token adds; empty while a character is incomplete."""
        ...

    def fork(self) -> TokenStream:
        """A copy that continues from here."""
        ...


@dataclass(frozen=True)
class Taken:
    """The part of a round's tokens that belongs to the output."""

    count: int
    text: str
    """Text to show now; a possible beginning of a stop string is held back."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or id of the request's own that ended the output; None at the model's end-of-sequence token."""


class Stopper:
    """Detects the end of one request's output.  It is immutable: each round returns the next stopper.

    Args:
        params: the request's parameters.
        end_ids: token ids that end the output.
        budget: output tokens at most.
        stream: makes text; None where there is no tokenizer.
    """

    def __init__(
        self, params: SamplingParams, end_ids: frozenset[int], budget: int, stream: TokenStream | None
    ) -> None:
        self._stops, self._min_tokens = params.stop, params.min_tokens
        self._asked_ids = frozenset(params.stop_token_ids)
        self.end_ids, self._budget, self._stream = end_ids, budget, stream
        self._window = max((len(stop) for stop in params.stop), default=1) - 1
        self._tail, self._held, self._count = "", "", 0
        self.reads_text = bool(params.stop)
        """Whether stop strings may end the output, not only tokens and their number."""

    def take(self, tokens: Sequence[int], *, failed: FinishReason | None = None) -> tuple[Taken, Stopper]:
        """Accept tokens up to the output's end.

        Args:
            tokens: what a round emitted, in order.
            failed: how the output ends if the request cannot go on after them; an end before that is an end all the
                same.

        Returns:
            What the output takes, and the stopper of the next round.
        """
        later = Stopper.__new__(Stopper)
        later.__dict__.update(self.__dict__)  # copy.copy takes ten times as long
        later._stream = self._stream.fork() if self._stream else None
        return later._advance(tokens, failed), later

    def ends_at(self, token: int) -> Stopper | None:
        """The stopper after one more token, or None where the output ends with it."""
        if not self.reads_text:  # counts are checked where tokens are taken
            return None if token in self.end_ids else self
        taken, later = self.take((token,))
        return later if taken.finish_reason is None else None

    def _advance(self, tokens: Sequence[int], failed: FinishReason | None) -> Taken:
        shown: list[str] = []
        for index, token in enumerate(tokens):
            if self._count >= self._budget:
                return self._finish(index, shown, FinishReason.LENGTH)
            self._count += 1
            if token in self.end_ids:
                return self._finish(index + 1, shown, FinishReason.STOP, token if token in self._asked_ids else None)
            delta = self._stream.push(token) if self._stream else ""
            if not self.reads_text:
                shown.append(delta)
                continue
            stop = self._completed_stop(delta)
            if stop is not None:
                cut, reason = stop
                self._held = (self._held + delta)[:cut]
                return self._finish(index + 1, shown, FinishReason.STOP, reason)
            shown.append(self._release(delta))
        if self._count >= self._budget:
            return self._finish(len(tokens), shown, FinishReason.LENGTH)
        return self._finish(len(tokens), shown, failed) if failed else Taken(len(tokens), "".join(shown))

    def _finish(self, count: int, shown: list[str], reason: FinishReason, stop: int | str | None = None) -> Taken:
        shown.append(self._held)
        self._held = ""
        return Taken(count, "".join(shown), reason, stop)

    def _completed_stop(self, delta: str) -> tuple[int, str] | None:
        """The stop string that completes first in the new text, and where to cut the held text."""
        if not delta:
            return None
        text = self._tail + delta
        fresh = len(self._tail)
        self._tail = text[-self._window :] if self._window else ""
        if self._count < self._min_tokens:
            return None
        found = []
        for stop in self._stops:
            start = text.find(stop, max(0, fresh - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        _, start, stop = min(found)
        return len(self._held) + start - fresh, stop

    def _release(self, delta: str) -> str:
        """Text that cannot be part of a stop string any more."""
        text = self._held + delta
        keep = next((n for n in range(min(self._window, len(text)), 0, -1) if self._may_begin(text[-n:])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _may_begin(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)


class Endings:
    """Knows on which draft paths the output has ended; rows after an end are never computed.

    Args:
        stopper: the request's, before the round.
    """

    def __init__(self, stopper: Stopper) -> None:
        self._before = stopper
        self._after: dict[tuple[int, ...], Stopper | None] | None = None

    def reached(self, path: Sequence[int]) -> bool:
        """Whether the output ends with the last token of a path or before it."""
        if not self._before.reads_text:
            return not self._before.end_ids.isdisjoint(path)
        return self._stopper(tuple(path)) is None

    def _stopper(self, path: tuple[int, ...]) -> Stopper | None:
        if self._after is None:
            self._after = {(): self._before}
        known = len(path)
        while path[:known] not in self._after:
            known -= 1
        for length in range(known, len(path)):
            before = self._after[path[:length]]
            self._after[path[: length + 1]] = None if before is None else before.ends_at(path[length])
        return self._after[path]
